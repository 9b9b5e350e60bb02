"""The compile gate: a candidate's sources to an importable `cuda_extension`, through the build cache.

Every `.cu` file and the generated binding compile side by side, then the host compiler links them. What nvcc, ptxas
and the host compiler say comes back as diagnostics with paths as the author knows them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from cuda_agent.errors import MachineError, SignatureError
from cuda_agent.gates import binding
from cuda_agent.gates.cache import LIBRARY, BuildCache
from cuda_agent.gates.signatures import find_launchers
from cuda_agent.gates.toolkit import Toolkit, check_architecture
from cuda_agent.records.candidate import Build, Candidate, Diagnostic, KernelResources, Launcher
from cuda_agent.records.verdict import BuildFailed, SourceRejected, TimedOut

Target = Literal["cuda", "emulated"]

CUDA_FLAGS = ("-O3", "-std=c++17", "--split-compile", "0", "-lineinfo", "-Xptxas", "-v", "-Xcompiler", "-fPIC")
"""For a device that is timed: full optimisation, functions compiled in parallel, source lines (they cost nothing)."""

EMULATED_FLAGS = ("-O3", "-std=c++17", "-lineinfo", "--no-compress", "-cudart", "none", "-Xcompiler", "-fPIC")
"""For the emulated device: PTX only (the architecture is `compute_90a`), uncompressed so that it can be read back."""

BINDING_FLAGS = ("-O2", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wno-unused-function")
MOST_DIAGNOSTICS = 20
REACHING_OUT = frozenset(
    {
        "dlopen", "dlmopen", "dlsym", "dlvsym", "dl_iterate_phdr", "system", "popen",
        "execl", "execle", "execlp", "execv", "execve", "execvp", "execvpe",
        "fexecve", "posix_spawn", "posix_spawnp", "fork", "vfork", "clone", "ptrace",
        "process_vm_readv", "process_vm_writev", "mprotect", "pkey_mprotect", "syscall", "socket", "connect",
    }
)  # fmt: skip
"""Functions that kernels' host code has no business with; what the runtime library itself calls does not count."""
LIBRARIES_BY_HEADER = {
    "cublas_v2.h": ("cublas",),
    "cublasLt.h": ("cublasLt",),
    "cudnn.h": ("cudnn",),
    "curand.h": ("curand",),
    "cufft.h": ("cufft",),
    "cusparse.h": ("cusparse",),
}


class CompileGate:
    """Builds candidates.

    Stops: sources that don't compile, launchers Python can't call, builds that never end or take all memory, sources
    that include or embed files of the user's.
    Does not stop: a candidate whose host code does harm when it is loaded; that is the sandbox's part.
    """

    def __init__(
        self,
        *,
        toolkit: Toolkit,
        cache_folder: Path,
        emulator_library: Callable[[], Path],
        emulator_headers: Path,
        time_limit_s: float = 300,
    ) -> None:
        self._toolkit = toolkit
        self._cache = BuildCache(cache_folder / "builds")
        self._emulator_library = emulator_library
        self._emulator_headers = emulator_headers
        self._time_limit_s = time_limit_s

    def build(
        self, candidate: Candidate, *, target: Target, architectures: tuple[str, ...]
    ) -> Build | SourceRejected | BuildFailed | TimedOut:
        """Return the candidate's build, from the cache when nothing that matters has changed.

        Raises:
            UserError: an architecture nvcc does not know.
            MachineError: the disk is full, or the compilers can't be started.
        """
        for architecture in architectures:
            check_architecture(self._toolkit, architecture)
        try:
            launchers = find_launchers(candidate)
        except SignatureError as error:
            return SourceRejected(gate="compile", check="launcher signature", message=str(error))
        emulator = self._emulator_library() if target == "emulated" else None
        key = self._key(candidate, target, architectures, emulator)
        if found := self._cache.find(key):
            return found
        try:
            work = self._cache.work_folder()
            try:
                return self._compile(candidate, target, architectures, launchers, emulator, key, work)
            finally:
                shutil.rmtree(work, ignore_errors=True)
        except OSError as error:
            place = error.filename or "the build cache"
            if place in (self._toolkit.nvcc, self._toolkit.host_compiler):
                advice = "The compiler was there when it was looked for: install it again, or see cuda-agent doctor."
            else:
                advice = (
                    "Free space, or choose another cache folder with $CUDA_AGENT_CACHE; nothing half-built was kept."
                )
            raise MachineError(f"Building a candidate failed: {error.strerror or error} ({place}). {advice}") from error

    def _key(self, candidate: Candidate, target: Target, architectures: tuple[str, ...], emulator: Path | None) -> str:
        toolkit = self._toolkit
        parts = [
            target,
            *architectures,
            *(CUDA_FLAGS if target == "cuda" else EMULATED_FLAGS),
            *BINDING_FLAGS,
            toolkit.nvcc,
            toolkit.version,
            toolkit.host_compiler,
            toolkit.host_version,
            sys.implementation.cache_tag,
            binding.generator_version(),
            str(emulator),
        ]
        digest = hashlib.sha256("\0".join(parts).encode())
        for name, text in candidate.files.items():
            if name.startswith("kernels/"):
                digest.update(b"\0" + name.encode() + b"\0" + text.encode())
        return digest.hexdigest()[:32]

    def _compile(
        self,
        candidate: Candidate,
        target: Target,
        architectures: tuple[str, ...],
        launchers: tuple[Launcher, ...],
        emulator: Path | None,
        key: str,
        work: Path,
    ) -> Build | SourceRejected | BuildFailed | TimedOut:
        started = time.monotonic()
        for name, text in candidate.files.items():
            path = work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        (work / "binding.cpp").write_text(binding.generate(launchers), encoding="utf-8")
        (work / "binding_support.h").write_text(binding.support_header(), encoding="utf-8")
        (work / "tmp").mkdir()
        sources = [name for name in candidate.files if name.endswith(".cu")]
        nvcc = self._nvcc_command(target, architectures)
        commands = [[*nvcc, "-c", name, "-o", f"{_flat(name)}.o"] for name in sources]
        commands.append(self._binding_command(target))
        readable = [self._emulator_headers, *map(Path, self._toolkit.libraries)]
        readable += [_installation(self._toolkit.nvcc), _installation(self._toolkit.host_compiler)]
        if emulator is not None:
            readable.append(emulator.parent)
        tools = _Tools(work, started + self._time_limit_s, readable=readable)
        with ThreadPoolExecutor(max(2, os.cpu_count() or 2)) as pool:
            try:
                ran = list(pool.map(tools.run, commands))
            except BaseException:  # Ctrl-C as well: the pool waits for its threads, which must have an end
                tools.stop()
                raise
        if tools.expired:
            return self._timed_out()
        if any(code for code, _ in ran):
            return self._failed([text for _, text in ran])
        objects = [f"{_flat(name)}.o" for name in sources]
        reaching = self._reaching_out(work, objects)
        if reaching is not None:
            return reaching
        code, text = tools.run(self._link_command(candidate, objects, emulator))
        if tools.expired:
            return self._timed_out()
        if code:
            return self._failed([text])
        missing = self._undefined(work / LIBRARY, target, emulator)
        if missing:
            diagnostic = Diagnostic(
                severity="error",
                file="",
                line=0,
                message=f"undefined symbol{'s' if len(missing) > 1 else ''} {', '.join(missing)}: declared and called, "
                "but defined in no .cu file and no linked library",
            )
            return BuildFailed(gate="compile", check="link", message=diagnostic.message, diagnostics=(diagnostic,))
        said = "\n".join(text for _, text in ran)
        build = Build(
            key=key,
            library="",
            target=target,
            architectures=architectures,
            launchers=launchers,
            resources=tuple(_resources(said)),
            warnings=tuple(d for d in _diagnostics(said) if d.severity == "warning"),
            toolkit=self._toolkit.name,
            command=" ".join(
                [*(word.rpartition("/")[2] for word in nvcc), "-c", sources[0], "-o", f"{_flat(sources[0])}.o"]
            ),
            seconds=round(time.monotonic() - started, 3),
            cached=False,
        )
        return self._cache.publish(key, work / LIBRARY, build)

    def _nvcc_command(self, target: Target, architectures: tuple[str, ...]) -> list[str]:
        command = [self._toolkit.nvcc, *(CUDA_FLAGS if target == "cuda" else EMULATED_FLAGS)]
        command += ["-ccbin", self._toolkit.host_compiler]
        for architecture in architectures:
            # One -gencode each: -arch=sm_90a would compile twice and embed PTX of another architecture.
            virtual = architecture.replace("sm_", "compute_")
            command += ["-gencode", f"arch={virtual},code={architecture}"]
        return [*command, "-I", "kernels"]

    def _binding_command(self, target: Target) -> list[str]:
        command = [self._toolkit.host_compiler, *BINDING_FLAGS, "-I", sysconfig.get_paths()["include"], "-I", "."]
        if target == "emulated":
            command += ["-DCUDA_AGENT_EMULATED", "-I", str(self._emulator_headers)]
        return [*command, "-c", "binding.cpp", "-o", "binding.o"]

    def _link_command(self, candidate: Candidate, objects: list[str], emulator: Path | None) -> list[str]:
        command = [self._toolkit.host_compiler, "-shared", "-o", LIBRARY, *objects, "binding.o"]
        if emulator is not None:
            return [*command, str(emulator), f"-Wl,-rpath,{emulator.parent}"]
        command += [f"-L{folder}" for folder in self._toolkit.libraries]
        command += self._library_flags(candidate)
        return [*command, "-lcudart_static", "-ldl", "-lrt", "-lpthread"]

    def _library_flags(self, candidate: Candidate) -> list[str]:
        """Return link flags of the CUDA libraries whose headers the candidate includes, where they are installed."""
        text = "\n".join(candidate.files.values())
        wanted = [name for header, names in LIBRARIES_BY_HEADER.items() if header in text for name in names]
        packages = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
        folders = [*map(Path, self._toolkit.libraries), *sorted(packages.glob("*/lib"))]
        flags = []
        for name in wanted:
            for folder in folders:
                files = sorted(folder.glob(f"lib{name}.so*"), key=lambda path: len(path.name))
                if files:
                    flags += [f"-L{folder}", f"-l:{files[0].name}", f"-Wl,-rpath,{folder}"]
                    break
        return flags

    def _reaching_out(self, work: Path, objects: list[str]) -> SourceRejected | None:
        """Refuse kernels that call Python, load code or start programs: by symbol, so in any spelling."""
        nm = shutil.which("nm")
        if nm is None:
            return None
        command = [nm, "--undefined-only", *objects]
        listed = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False).stdout
        names = {line.split()[-1].partition("@")[0] for line in listed.splitlines() if line.startswith(" ")}
        found = sorted(n for n in names if n in REACHING_OUT or n.startswith(("Py", "_Py")))
        if not found:
            return None
        return SourceRejected(
            gate="compile",
            check="reaching out",
            message=f"kernels/*.cu call {', '.join(found[:5])}: a launcher launches kernels; it calls no Python, loads no code, "
            "starts no programs and changes no page's protection. Remove the call.",
        )

    def _undefined(self, library: Path, target: Target, emulator: Path | None) -> list[str]:
        nm = shutil.which("nm")
        if nm is None:
            return []
        listed = subprocess.run(
            [nm, "-D", "--undefined-only", str(library)], capture_output=True, text=True, check=False
        )
        names = {line.split()[-1] for line in listed.stdout.splitlines() if line.split()[0] == "U"}
        names = {n for n in names if "@" not in n and not n.startswith(("Py", "_Py"))}
        if emulator is not None and names:
            defined = subprocess.run(
                [nm, "-D", "--defined-only", str(emulator)], capture_output=True, text=True, check=False
            )
            names -= {line.split()[-1].split("@")[0] for line in defined.stdout.splitlines() if line}
        elif target == "cuda":
            names = {n for n in names if not n.startswith(("cublas", "cudnn", "curand", "cufft", "cusparse"))}
        return sorted(names)[:10]

    def _timed_out(self) -> TimedOut:
        return TimedOut(
            gate="compile",
            check="build time",
            message=f"The build did not finish within {self._time_limit_s:g} s. Use fewer template instantiations or "
            "lighter headers.",
            limit_s=self._time_limit_s,
        )

    def _failed(self, texts: list[str]) -> BuildFailed:
        said = "\n".join(text for text in texts if text)
        if "No space left on device" in said:
            raise MachineError(
                "Building a candidate failed: no space left on the disk of the build cache or of temporary files. "
                "Free space, or choose another cache folder with $CUDA_AGENT_CACHE; nothing half-built was kept."
            )
        diagnostics = tuple(_diagnostics(said))
        errors = [d for d in diagnostics if d.severity == "error"]
        shown = [f"{d.file}:{d.line}: {d.message}" if d.file else d.message for d in errors[:5]]
        rest = f" (and {len(errors) - 5} more errors)" if len(errors) > 5 else ""
        message = "; ".join(shown) + rest if shown else said.strip()[-1500:] or "the compiler failed without a message"
        return BuildFailed(gate="compile", check="nvcc", message=message, diagnostics=diagnostics)


class _Tools:
    """Runs compilers confined to their folder; all end together, at the deadline or when they are stopped."""

    def __init__(self, work: Path, deadline: float, *, readable: Sequence[Path]) -> None:
        self._work = work
        self._confined = [sys.executable, "-P", "-m", "cuda_agent.worker.confined_program", "--write", str(work)]
        for path in readable:
            self._confined += ["--read", str(path)]
        self._deadline = deadline
        self._stopped = threading.Event()
        self._running: set[subprocess.Popen[bytes]] = set()
        self.expired = False

    def run(self, command: list[str]) -> tuple[int, str]:
        """Return the exit code and everything the command said."""
        environment = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "TMPDIR": str(self._work / "tmp"),
            "HOME": str(self._work / "tmp"),
            "LC_ALL": "C.UTF-8",
        }
        if not Path(command[0]).exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
        with subprocess.Popen(
            [*self._confined, "--", *command],
            cwd=self._work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            self._running.add(process)
            try:
                if self._stopped.is_set():
                    _kill(process)
                output, _ = process.communicate(timeout=max(0.01, self._deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.expired = True
                output = b""
            finally:
                _kill(process)
                self._running.discard(process)
        return process.returncode, output.decode(errors="replace")

    def stop(self) -> None:
        """End what is running now, and whatever is started later at once."""
        self._stopped.set()
        for process in tuple(self._running):
            _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a compiler with all the programs it started, unless it has ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _installation(tool: str) -> Path:
    """Return the folder that a compiler is installed in with its headers; never a home or what holds one."""
    folder = Path(tool).resolve().parent
    home = Path.home()
    return folder if folder.parent in (home, *home.parents) else folder.parent


def _flat(name: str) -> str:
    return name.replace("/", "__")


_NVCC_LINE = re.compile(
    r"^(?P<file>[^\s(][^(]*)\((?P<line>\d+)\): (?P<severity>error|warning|catastrophic error)[^:]*: (?P<message>.*)"
)
_GCC_LINE = re.compile(
    r"^(?P<file>[^\s:][^:]*):(?P<line>\d+):(?:\d+:)? (?P<severity>(?:fatal )?error|warning): (?P<message>.*)"
)
_TOOL_LINE = re.compile(
    r"^(?P<tool>nvcc|ptxas|nvlink|cicc|ld|collect2)\s*(?::|\S*, line \d+;|\S*,)?\s*(?P<severity>fatal|error)\s*:?\s*(?P<message>.*)"
)
_LINKER_LINE = re.compile(r"^.*?(?P<message>(?:undefined reference to|multiple definition of|cannot find) .*)")


def _diagnostics(said: str) -> list[Diagnostic]:
    """Return the compilers' messages, without notes, template back-traces and repetitions."""
    found: dict[tuple[str, int, str], Diagnostic] = {}
    for line in said.splitlines():
        match = _NVCC_LINE.match(line) or _GCC_LINE.match(line)
        if match:
            severity: Literal["error", "warning"] = "warning" if match["severity"] == "warning" else "error"
            diagnostic = Diagnostic(
                severity=severity,
                file=_shown(match["file"]),
                line=int(match["line"]),
                message=match["message"].strip()[:400],
            )
        elif tool := _TOOL_LINE.match(line):
            diagnostic = Diagnostic(
                severity="error", file="", line=0, message=f"{tool['tool']}: {tool['message'].strip()[:400]}"
            )
        elif linker := _LINKER_LINE.match(line):
            diagnostic = Diagnostic(severity="error", file="", line=0, message=linker["message"].strip()[:400])
        else:
            continue
        found.setdefault((diagnostic.file, diagnostic.line, diagnostic.message), diagnostic)
    ordered = sorted(found.values(), key=lambda d: d.severity != "error")
    return ordered[:MOST_DIAGNOSTICS]


def _shown(path: str) -> str:
    return path[path.index("kernels/") :] if "kernels/" in path else path


def _resources(said: str) -> list[KernelResources]:
    """Return ptxas's report (`-v`) by kernel and architecture."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    current: tuple[str, str] | None = None
    for line in said.splitlines():
        if match := re.search(r"Compiling entry function '([^']+)' for '([^']+)'", line):
            current = (match[1], match[2])
            found[current] = {}
        elif current is None:
            continue
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            found[current].update(stack=int(match[1]), stores=int(match[2]), loads=int(match[3]))
        elif match := re.search(r"Used (\d+) registers", line):
            found[current]["registers"] = int(match[1])
            for amount, kind in re.findall(r"(\d+) bytes (smem|cmem\[0\])", line):
                found[current][kind] = int(amount)
    names = _demangled([kernel for kernel, _ in found])
    return [
        KernelResources(
            kernel=names[kernel],
            arch=arch,
            registers=values.get("registers", 0),
            static_shared_bytes=values.get("smem", 0),
            constant_bytes=values.get("cmem[0]", 0),
            stack_bytes=values.get("stack", 0),
            spill_store_bytes=values.get("stores", 0),
            spill_load_bytes=values.get("loads", 0),
        )
        for (kernel, arch), values in found.items()
    ]


def _demangled(names: list[str]) -> dict[str, str]:
    tool = shutil.which("c++filt")
    if tool is None or not names:
        return {name: name for name in names}
    ran = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True, check=False)
    return dict(zip(names, ran.stdout.splitlines() or names))
