"""The tools a policy works with: files of one workspace, and the judge's gates."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from cuda_agent.errors import CandidateError, CandidateFolderError, MachineError, ProblemError
from cuda_agent.gates.judge import Judge
from cuda_agent.gates.verify import UNSUPPORTED, Verified
from cuda_agent.gates.workspace import MODEL_FILE, read_candidate
from cuda_agent.records.candidate import Build, Candidate
from cuda_agent.records.episode import ToolCall, ToolResult
from cuda_agent.records.evidence import Evidence
from cuda_agent.records.verdict import BuildFailed, MachineFault, Passed, ProblemFault, Verdict

LARGEST_FILE_BYTES = 1_000_000
READ_CHARACTERS = 20_000
"""Most characters one `read` answers with."""


@dataclass(frozen=True)
class Tool:
    """What a policy may call: a name, what it does, and its arguments."""

    description: str
    arguments: Mapping[str, str]
    """Name to meaning; all are strings."""


TOOLS: dict[str, Tool] = {
    "list": Tool("List the files of the workspace with their sizes.", {}),
    "read": Tool("Read a file of the workspace.", {"path": "file to read"}),
    "write": Tool(
        "Write a file of the workspace: model_new.py, or one below kernels/.",
        {"path": "file to write", "text": "its whole text"},
    ),
    "edit": Tool(
        "Replace one piece of text of a file; it must occur exactly once.",
        {"path": "file to change", "old": "text that is there", "new": "text to put there"},
    ),
    "compile": Tool("Build the candidate; answers with the compiler's errors, or what its kernels need.", {}),
    "verify": Tool("Build it and compare its results with the reference on fresh secret inputs.", {}),
    "profile": Tool("Build it, verify it, and time it briefly beside eager and torch.compile.", {}),
    "submit": Tool("Have the candidate judged in full. Only a submitted candidate counts.", {}),
}


class Environment:
    """One workspace and the judge of its problem."""

    def __init__(self, workspace: Path, judge: Judge, on_evidence: Callable[[Evidence], None]) -> None:
        """`on_evidence` is called with what came of every `submit`."""
        self._workspace = workspace
        self._judge = judge
        self._on_evidence = on_evidence
        self.build_seconds = 0.0
        self.gate_seconds = 0.0

    def call(self, call: ToolCall) -> ToolResult:
        """Carry out one call; a policy's mistakes are answers, not exceptions.

        Raises:
            ProblemError: the problem can't be judged.
            MachineError: a gate could not do its work.
        """
        started = time.monotonic()
        result = self._answer(call)
        return msgspec.structs.replace(result, seconds=round(time.monotonic() - started, 3))

    def candidate(self) -> Candidate:
        """Return the workspace as it is; raises `CandidateError` when it is no candidate."""
        return read_candidate(self._workspace)

    def _answer(self, call: ToolCall) -> ToolResult:
        tool = TOOLS.get(call.tool)
        if tool is None:
            close = difflib.get_close_matches(call.tool, TOOLS, 1)
            hint = f" Did you mean {close[0]}?" if close else ""
            return _no(f"There is no tool {call.tool!r}; there are: {', '.join(TOOLS)}.{hint}")
        wrong = [name for name in call.arguments if name not in tool.arguments]
        missing = [name for name in tool.arguments if not isinstance(call.arguments.get(name), str)]
        if wrong or missing:
            wanted = ", ".join(tool.arguments) or "none"
            found = ", ".join(call.arguments) or "none"
            return _no(f"{call.tool} takes these arguments, all text: {wanted}. Found: {found}.")
        try:
            answer: Callable[..., ToolResult] = getattr(self, f"_{call.tool}")
            return answer(**call.arguments)
        except _Mistake as mistake:
            return _no(str(mistake))
        except (CandidateError, CandidateFolderError) as error:
            return _no(str(error))

    # --- files ---

    def _list(self) -> ToolResult:
        files = {
            str(path.relative_to(self._workspace)): path.stat().st_size
            for path in sorted(self._workspace.rglob("*"))
            if path.is_file() and not path.is_symlink()
        }
        text = "\n".join(f"{name} ({size} bytes)" for name, size in files.items()) or "The workspace is empty."
        return ToolResult(ok=True, text=text, data={"files": files})

    def _read(self, path: str) -> ToolResult:
        file = self._existing(path)
        text = file.read_text(encoding="utf-8", errors="replace")
        shown = text[:READ_CHARACTERS]
        if len(text) > len(shown):
            shown += f"\n[{len(text) - len(shown)} more characters]"
        return ToolResult(ok=True, text=shown)

    def _write(self, path: str, text: str) -> ToolResult:
        file = self._place(path)
        if len(text.encode()) > LARGEST_FILE_BYTES:
            raise _Mistake(f"{path}: {len(text.encode())} bytes; a file may have {LARGEST_FILE_BYTES}.")
        file.parent.mkdir(parents=True, exist_ok=True)
        # Beside it and over it, so that an interrupted write leaves the old text.
        fresh = file.with_name(f".{file.name}.writing")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(file)
        return ToolResult(ok=True, text=f"wrote {path}: {text.count(chr(10))} lines")

    def _edit(self, path: str, old: str, new: str) -> ToolResult:
        file = self._existing(path)
        text = file.read_text(encoding="utf-8")
        times = text.count(old) if old else 0
        if times != 1:
            raise _Mistake(
                f"{path}: the text to replace occurs {times} times; it must occur exactly once. "
                + ("Read the file again and copy the text." if times == 0 else "Give more of the lines around it.")
            )
        return self._write(path, text.replace(old, new))

    def _place(self, path: str) -> Path:
        """Return where a path of the workspace lies.

        Raises:
            _Mistake: it is not one that a candidate may have.
        """
        pure = PurePosixPath(path)
        inside = str(pure) == MODEL_FILE or (len(pure.parts) > 1 and pure.parts[0] == "kernels")
        if pure.is_absolute() or ".." in pure.parts or not inside:
            raise _Mistake(f"{path}: a candidate's files are {MODEL_FILE} and files below kernels/.")
        return self._workspace / pure

    def _existing(self, path: str) -> Path:
        file = self._place(path)
        if file.is_symlink() or not file.is_file():
            there = sorted(str(p.relative_to(self._workspace)) for p in self._workspace.rglob("*") if p.is_file())
            raise _Mistake(f"{path}: there is no such file. There are: {', '.join(there) or 'none'}.")
        return file

    # --- gates ---

    def _compile(self) -> ToolResult:
        started = time.monotonic()
        result = self._judge.compile(self.candidate())
        self.build_seconds += time.monotonic() - started
        if not isinstance(result, Build):
            return _rejected(result)
        lines = ["It builds."]
        for kernel in result.resources:
            spilled = kernel.spill_store_bytes + kernel.spill_load_bytes
            lines.append(
                f"{kernel.kernel} ({kernel.arch}): {kernel.registers} registers, {kernel.static_shared_bytes} bytes of "
                "static shared memory" + (f", {spilled} bytes spilled" if spilled else "")
            )
        lines += [f"warning: {w.file}:{w.line}: {w.message}" for w in result.warnings]
        return ToolResult(ok=True, text="\n".join(lines), data={"resources": msgspec.to_builtins(result.resources)})

    def _verify(self) -> ToolResult:
        started = time.monotonic()
        result = self._judge.verify(self.candidate())
        self.gate_seconds += time.monotonic() - started
        if not isinstance(result, Verified):
            return _rejected(result)
        worst = max((error.worst_ratio for error in result.errors), default=0.0)
        return ToolResult(
            ok=True,
            text=f"Correct in {result.trials} trials; the worst error is {worst:.1%} of what is allowed.",
            data={"trials": result.trials, "worst_ratio": worst},
        )

    def _profile(self) -> ToolResult:
        started = time.monotonic()
        evidence = self._judge.profile(self.candidate())
        self.gate_seconds += time.monotonic() - started
        return _measured(evidence)

    def _submit(self) -> ToolResult:
        started = time.monotonic()
        evidence = self._judge.judge(self.candidate())
        self.gate_seconds += time.monotonic() - started
        self._on_evidence(evidence)
        return _measured(evidence)


class _Mistake(Exception):
    """The policy asked for something that can't be done; the text is the answer."""


def _no(text: str) -> ToolResult:
    return ToolResult(ok=False, text=text)


def _rejected(verdict: Verdict) -> ToolResult:
    """Return a rejection as an answer; what no change to the candidate can mend ends the episode instead.

    Raises:
        ProblemError: the problem is at fault.
        MachineError: the machine is; the turn can be made again.
    """
    if isinstance(verdict, ProblemFault):
        raise ProblemError(verdict.message)
    if isinstance(verdict, MachineFault) and verdict.check != UNSUPPORTED:
        raise MachineError(verdict.message)
    data: dict[str, Any] = {"verdict": verdict.__struct_config__.tag, "gate": verdict.gate, "check": verdict.check}
    if isinstance(verdict, BuildFailed):
        data["diagnostics"] = msgspec.to_builtins(verdict.diagnostics)
    return ToolResult(
        ok=False, text=f"{data['verdict']} at {verdict.gate} ({verdict.check}): {verdict.message}", data=data
    )


def _measured(evidence: Evidence) -> ToolResult:
    verdict = evidence.verdict
    if not isinstance(verdict, Passed):
        return _rejected(verdict)
    data: dict[str, Any] = {"verdict": "passed", "reward": evidence.reward.value}
    if verdict.timing is None:
        return ToolResult(ok=True, text=f"Correct; {verdict.message}.", data=data)
    times = {time.contender: time.device_median_us.point for time in verdict.timing.times}
    data["device_us"] = times
    data["speedups"] = {speedup.baseline: speedup.device.point for speedup in verdict.timing.speedups}
    lines = [f"{name}: {us:.1f} us" for name, us in times.items()]
    lines += [
        f"{s.device.point:.3f}x as fast as {s.baseline} (95 % interval {s.device.low:.3f} to {s.device.high:.3f})"
        for s in verdict.timing.speedups
    ]
    return ToolResult(ok=True, text="\n".join(lines), data=data)
