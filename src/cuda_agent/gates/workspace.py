"""Reads a candidate folder into a record, so that what is judged is what was read."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from cuda_agent.errors import CandidateFolderError
from cuda_agent.records.candidate import Candidate

MODEL_FILE = "model_new.py"
KERNEL_FOLDER = "kernels"
SOURCE_SUFFIX = ".cu"
HEADER_SUFFIXES = (".cuh", ".h", ".hpp", ".hh", ".inl")
HOST_SUFFIXES = (".cpp", ".cc", ".cxx", ".c")
LARGEST_FILE_BYTES = 2 * 1024 * 1024
LARGEST_TOTAL_BYTES = 8 * 1024 * 1024
MOST_FILES = 200

_FORM = 'A candidate is a folder with model_new.py (class ModelNew) and kernels/*.cu (extern "C" launchers).'


def read_candidate(folder: Path) -> Candidate:
    """Return a snapshot of the native candidate in `folder`: `model_new.py` and the sources under `kernels/`.

    Hidden files and files that are no CUDA sources or headers (notes, build outputs) are left out.

    Raises:
        CandidateFolderError: there is no such folder, it lacks a part, it has another form, or a file is too large,
            is not UTF-8, or is a link that leads out of the folder.
    """
    asked = f"Candidate {folder}"
    try:
        if not folder.exists():
            raise CandidateFolderError(f"{asked}: there is no such folder. {_FORM}")
        if not folder.is_dir():
            raise CandidateFolderError(
                f"{asked}: it is a file, and a candidate is a folder. {_not_single(folder)}{_FORM}"
            )
        if not (folder / MODEL_FILE).is_file():
            found = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
            raise CandidateFolderError(f"{asked}: it has no {MODEL_FILE}; it holds {found}. {_FORM}")
        sources = _sources(folder)
        files = _read_all(folder, [folder / MODEL_FILE, *sources])
    except OSError as error:
        place = error.filename or folder
        raise CandidateFolderError(f"{asked}: {place} can't be read: {error.strerror}.") from error
    return candidate_of(files)


def candidate_of(files: dict[str, str]) -> Candidate:
    """Return the native candidate made of `files`, relative path to text."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(name.encode() + b"\0" + files[name].encode() + b"\0")
    return Candidate(id=digest.hexdigest()[:16], form="native", files=dict(sorted(files.items())))


def _sources(folder: Path) -> list[Path]:
    asked = f"Candidate {folder}"
    kernels = folder / KERNEL_FOLDER
    found = _walk(kernels) if kernels.is_dir() else []
    host = [path for path in found if path.suffix in HOST_SUFFIXES]
    if host:
        names = ", ".join(str(path.relative_to(folder)) for path in host[:3])
        if any(path.stem.endswith("_binding") or "PYBIND11_MODULE" in _peek(path) for path in host):
            raise CandidateFolderError(
                f"{asked}: it has {names}, the form of the released CUDA-Agent work directory, which is not judged "
                "here. Remove the binding files: every launcher of kernels/*.cu is bound from its C signature."
            )
        raise CandidateFolderError(
            f"{asked}: it has {names}; host code belongs in .cu files, which nvcc compiles. Rename it, or move what it "
            f"does into a .cu file. {_FORM}"
        )
    sources = [path for path in found if path.suffix == SOURCE_SUFFIX or path.suffix in HEADER_SUFFIXES]
    if not any(path.suffix == SOURCE_SUFFIX for path in sources):
        state = "is not there" if not kernels.is_dir() else "holds no .cu file"
        raise CandidateFolderError(f"{asked}: {KERNEL_FOLDER}/ {state}. {_not_single(folder / MODEL_FILE)}{_FORM}")
    if len(sources) > MOST_FILES:
        raise CandidateFolderError(f"{asked}: {len(sources)} files under kernels/, at most {MOST_FILES} are read.")
    return sources


def _walk(kernels: Path) -> list[Path]:
    """Return the files below `kernels`; linked folders are not followed, so a loop ends."""
    found = []
    for here, folders, names in os.walk(kernels):
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        found += [Path(here, name) for name in names if not name.startswith(".")]
    return sorted(found)


def _read_all(folder: Path, paths: list[Path]) -> dict[str, str]:
    files: dict[str, str] = {}
    total = 0
    for path in paths:
        text = _read(folder, path)
        total += len(text)
        if total > LARGEST_TOTAL_BYTES:
            raise CandidateFolderError(
                f"Candidate {folder}: its sources are larger than {LARGEST_TOTAL_BYTES // 2**20} MiB together."
            )
        files[path.relative_to(folder).as_posix()] = text
    return files


def _read(folder: Path, path: Path) -> str:
    place = f"Candidate {folder}: {path.relative_to(folder)}"
    if not path.resolve().is_relative_to(folder.resolve()):
        raise CandidateFolderError(f"{place} is a link that leads out of the folder. Copy the file.")
    if not path.is_file():
        raise CandidateFolderError(f"{place} is not a regular file.")
    size = path.stat().st_size
    if size > LARGEST_FILE_BYTES:
        raise CandidateFolderError(f"{place} has {size} bytes, at most {LARGEST_FILE_BYTES} are read.")
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CandidateFolderError(f"{place} is not UTF-8 text (byte {error.start}). Save it as UTF-8.") from error
    if "\0" in text:
        raise CandidateFolderError(f"{place} holds a NUL byte, so it is not source text.")
    return text


def _not_single(path: Path) -> str:
    """Return advice when `path` is a Python file in the single-file form, else nothing."""
    text = _peek(path)
    if "load_inline" not in text and "cpp_extension" not in text:
        return ""
    return (
        f"{path.name} calls load_inline, the single-file form, which is not judged here: move the CUDA text to "
        'kernels/NAME.cu with an extern "C" launcher and import that from cuda_extension. '
    )


def _peek(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(LARGEST_FILE_BYTES).decode(errors="replace")
