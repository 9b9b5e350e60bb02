"""Takes rights away from this process for good, right before it loads a candidate.

What is needed with those rights (the emulated device's core, a CUDA context) is set up before. Afterwards the process
reads the system's libraries, Python's, and what it was named; writes its own folders; opens no socket; starts no
program; signals and inspects no other process. As root it also becomes a user of its own.

Four means, each of which an older kernel or a container may lack; `enter` says what is missing:
Landlock (files; kernel 5.13) applies to this thread and those it starts, so a thread of the CUDA driver that ran before
keeps its rights; seccomp (system calls) applies to all threads; another user id needs root, and keeps the one capability
of reading, since Landlock judges reads better than file modes do.
Sources: landlock(7), seccomp(2), capabilities(7).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import importlib.util
import os
import platform
import resource
import struct
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from cuda_agent.records.protection import Protections, Right

SYSTEM = (
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/bin",
    "/etc",
    "/opt",
    "/sys",
    "/nix/store",
    "/gnu/store",
    "/run/nvidia*",
)
PROCESS = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys", "/proc/driver", "/proc/devices")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
GPUS = ("/dev/nvidia*", "/dev/nvidia-caps/*")
WORKER_SIDE = ("__init__.py", "errors.py", "records", "worker", "emulator")
"""Of this package, where it lies in a folder of its own; the rest holds the references."""
FIRST_USER = 0x6B000000
"""User ids from here on belong to nobody: one a process, so that candidates can't signal each other either."""
MOST_TASKS = 4096
"""Threads and processes of such a user."""

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_SET_NO_NEW_PRIVS = 1, 4, 8, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP = 28, 4
_CAP_DAC_READ_SEARCH = 2
_libc = ctypes.CDLL(None, use_errno=True)


def enter(*, reads: Iterable[str], writes: Sequence[str], compiles: bool = False) -> Protections:
    """Give up every right that this machine lets a process give up.

    Args:
        reads: files and folders that may be read besides the system's and Python's.
        writes: folders of this process, read and written; owned by it afterwards.
        compiles: keep the right to start programs, and give up that to GPUs instead.

    Raises:
        OSError: a protection that the machine has could not be put in force.
    """
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        _fail("no_new_privs")
    root = os.getuid() == 0
    user = (
        _become_nobody(writes, inherited=compiles)
        if root
        else "only root can change it; the other protections hold all the same"
    )
    files = _restrict_files([*_system_paths(), *reads], [*writes], programs=compiles, gpus=not compiles)
    calls = _filter_calls(programs=compiles)
    why: dict[Right, str] = {
        "read files": files,
        "write files": files if user else "",  # a user of its own may write nothing but its own
        "network": calls,
        "programs": "compilers are programs" if compiles else calls,
        "other processes": calls if user else "",
        "caller's user": user,
    }
    return Protections(
        taken=tuple(right for right, reason in why.items() if not reason),
        left={right: reason for right, reason in why.items() if reason},
    )


def _fail(what: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, f"{what}: {os.strerror(number)}")


# --- user ---


def _become_nobody(writes: Sequence[str], *, inherited: bool) -> str:
    """Become a user that owns nothing but `writes`; return why that can't be, empty when it is done.

    Programs that are started keep the capability of reading when it is `inherited`.
    """
    # Compilers of one build work in one folder, so they share the user of whoever started them.
    user = FIRST_USER + (os.getppid() if inherited else os.getpid())
    try:
        os.setgroups([])
        os.setresgid(user, user, user)
    except OSError as error:
        # In a container whose user namespace maps few ids.
        return f"this machine has no user id to spare ({error.strerror})"
    for folder in writes:
        for parent, _, names in os.walk(folder):
            for path in (parent, *(os.path.join(parent, name) for name in names)):
                with contextlib.suppress(FileNotFoundError):  # another compiler's, gone meanwhile
                    os.chown(path, user, user, follow_symlinks=False)
    resource.setrlimit(resource.RLIMIT_NPROC, (MOST_TASKS, MOST_TASKS))
    if _libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0:
        _fail("keeping capabilities")
    # access(2) counts capabilities of others than root with this bit only, and compilers ask it for their folders.
    _libc.prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP, 0, 0, 0)
    os.setresuid(user, user, user)
    header = struct.pack("<Ii", 0x20080522, 0)
    keep = 1 << _CAP_DAC_READ_SEARCH
    data = struct.pack("<6I", keep, keep, keep if inherited else 0, 0, 0, 0)
    if _libc.capset(header, data) != 0:
        _fail("dropping capabilities")
    if inherited and _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_READ_SEARCH, 0, 0) != 0:
        _fail("handing a capability on")
    # Both are reset by a change of user: the process's own /proc files, and dying with its supervisor.
    _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    _libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0)
    return ""


# --- files ---

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL_DEV = 1, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV
_ALL_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_ALL_LATEST = (1 << 16) - 1
_NOT_MADE = (1 << 6) | (1 << 9) | (1 << 10) | (1 << 11)
"""Device nodes, sockets and pipes: not even in folders of its own."""


def _restrict_files(reads: Iterable[str], writes: Iterable[str], *, programs: bool, gpus: bool) -> str:
    """Allow what is named and nothing else; return why that can't be, empty when it is done."""
    create, add, restrict = 444, 445, 446  # the same on every architecture
    abi = _libc.syscall(create, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if abi < 1:
        return f"this kernel has no Landlock ({os.strerror(ctypes.get_errno())})"
    handled = _ALL_BY_ABI.get(abi, _ALL_LATEST)
    network = 3 if abi >= 4 else 0
    scopes = 3 if abi >= 6 else 0  # abstract sockets, signals
    attributes = struct.pack("<QQQ", handled, network, scopes)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = _libc.syscall(create, attributes, ctypes.c_size_t(size), ctypes.c_uint32(0))
    if ruleset < 0:
        _fail("landlock_create_ruleset")
    start = _EXECUTE if programs else 0
    read, change = _READ_FILE | _READ_DIR | start, handled & ~_NOT_MADE & ~_EXECUTE
    allowed = [(path, read) for path in reads]
    allowed += [(path, change) for path in writes]
    allowed += [(path, read | _WRITE_FILE | _IOCTL_DEV) for path in _found(DEVICES + GPUS if gpus else DEVICES)]
    for path, rights in allowed:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # nothing there to be allowed
        try:
            rights &= handled if os.path.isdir(path) else handled & _OF_FILES
            rule = struct.pack("<Qi", rights, descriptor)
            if _libc.syscall(add, ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint32(0)) != 0:
                _fail(f"landlock_add_rule for {path}")
        finally:
            os.close(descriptor)
    if _libc.syscall(restrict, ctypes.c_int(ruleset), ctypes.c_uint32(0)) != 0:
        _fail("landlock_restrict_self")
    os.close(ruleset)
    return ""


def _system_paths() -> list[str]:
    torch = importlib.util.find_spec("torch")
    libraries = [] if torch is None or torch.origin is None else [str(Path(torch.origin).parent.parent)]
    home = Path.home()
    package = Path(__file__).resolve().parent.parent
    named = [sys.prefix, sys.base_prefix, *sys.path, *os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)]
    named += [*libraries, *(str(package / name) for name in WORKER_SIDE)]
    paths = _found((*SYSTEM, *PROCESS))
    for name in filter(None, named):
        path = Path(name).resolve()
        # A source tree has nothing but this package in its folder; and no name may open a home or more.
        installed = path == package.parent and "site-packages" in path.parts
        if installed or path not in (package.parent, home, *home.parents):
            paths.append(str(path))
    return paths


def _found(patterns: Iterable[str]) -> list[str]:
    return [path for pattern in patterns for path in (glob.glob(pattern) if "*" in pattern else [pattern])]


# --- system calls ---

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_REFUSED = {
    # name: (x86_64, aarch64)
    "execve": (59, 221),
    "execveat": (322, 281),
    "socket": (41, 198),
    "io_uring_setup": (425, 425),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "kcmp": (312, 272),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_by_handle_at": (304, 265),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "reboot": (169, 142),
    "clock_settime": (227, 112),
    "settimeofday": (164, 170),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "personality": (135, 92),
}
_OWN_ONLY = {"kill": (62, 129), "tgkill": (234, 131), "prlimit64": (302, 261)}
"""Allowed when the first argument is this process, or 0."""
_CLONE, _CLONE3 = (56, 220), (435, 435)
_NEW_NAMESPACES = 0x7E020000
_X32 = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW = 0x7FFF0000


def _refuse(number: int) -> int:
    return 0x00050000 | number


def _filter_calls(*, programs: bool) -> str:
    """Refuse system calls that reach out of this process; return why that can't be, empty when it is done."""
    machine = platform.machine()
    if machine not in _AUDIT_ARCH:
        return f"no list of system calls for {machine}"
    program = _program(machine, os.getpid(), programs=programs)
    instructions = b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(instructions, len(instructions))
    header = struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(buffer))
    seccomp = 317 if machine == "x86_64" else 277
    every_thread = 1
    found = _libc.syscall(seccomp, ctypes.c_uint(1), ctypes.c_uint(every_thread), header)
    if found < 0 and ctypes.get_errno() in (errno.ENOSYS, errno.EINVAL, errno.EPERM):
        return f"this kernel takes no seccomp filter ({os.strerror(ctypes.get_errno())})"
    if found != 0:
        raise OSError(f"seccomp: thread {found} could not be included")
    return ""


def _program(machine: str, pid: int, *, programs: bool) -> list[tuple[int, int, int, int]]:
    """Return the filter; each comparison jumps over the answer that follows it."""
    column = 0 if machine == "x86_64" else 1
    refused = (_RETURN, 0, 0, _refuse(errno.EPERM))
    allowed = (_RETURN, 0, 0, _ALLOW)
    number, first = 0, 16  # offsets in struct seccomp_data; the first argument's low half
    program = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        refused,
        (_LOAD, 0, 0, number),
    ]
    if machine == "x86_64":
        program += [(_AT_LEAST, 0, 1, _X32), refused]
    for name, numbers in _REFUSED.items():
        if programs and name in ("execve", "execveat"):
            continue
        program += [(_EQUAL, 0, 1, numbers[column]), refused]
    # What can't be looked into is "not there", and the C library falls back to clone.
    program += [(_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _refuse(errno.ENOSYS))]
    program += [
        (_EQUAL, 0, 4, _CLONE[column]),
        (_LOAD, 0, 0, first),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        refused,
        allowed,
    ]
    # A compiler driver stops its own children, whose numbers nobody knows yet.
    for numbers in () if programs else _OWN_ONLY.values():
        program += [
            (_EQUAL, 0, 5, numbers[column]),
            (_LOAD, 0, 0, first),
            (_EQUAL, 1, 0, pid),
            (_EQUAL, 0, 1, 0),
            allowed,
            refused,
        ]
    return [*program, allowed]
