"""Reads a candidate folder into a record, so that what is judged is what was read."""

from __future__ import annotations

import hashlib
from pathlib import Path

from cuda_agent.errors import CandidateFolderError
from cuda_agent.records.candidate import Candidate

MODEL_FILE = "model_new.py"
KERNEL_FOLDER = "kernels"
KERNEL_SUFFIXES = (".cu", ".cuh", ".h", ".hpp")
LARGEST_FILE_BYTES = 2 * 1024 * 1024
MOST_FILES = 200


def read_candidate(folder: Path) -> Candidate:
    """Return a snapshot of the native candidate in `folder`: `model_new.py` and the sources under `kernels/`.

    Raises:
        CandidateFolderError: there is no such folder, it lacks a part, or a file can't be read as text.
    """
    asked = f"Candidate {folder}"
    if not folder.exists():
        raise CandidateFolderError(f"{asked}: there is no such folder. {_FORM}")
    if not folder.is_dir():
        raise CandidateFolderError(f"{asked}: it is a file, and a candidate is a folder. {_FORM}")
    kernels = folder / KERNEL_FOLDER
    if not (folder / MODEL_FILE).is_file():
        found = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
        raise CandidateFolderError(f"{asked}: it has no {MODEL_FILE}; it holds {found}. {_FORM}")
    sources = sorted(path for path in kernels.rglob("*") if path.suffix in KERNEL_SUFFIXES) if kernels.is_dir() else []
    if any(kernels.glob("*_binding.cpp")):
        raise CandidateFolderError(
            f"{asked}: it has kernels/*_binding.cpp, the form of the released CUDA-Agent work directory, which this "
            "version does not judge yet. Remove the binding files: launchers of kernels/*.cu are bound by themselves."
        )
    if not any(path.suffix == ".cu" for path in sources):
        text = _read(folder, folder / MODEL_FILE)
        hint = (
            "model_new.py calls load_inline, the single-file form, which this version does not judge yet: move the "
            'CUDA text to kernels/NAME.cu with an extern "C" launcher. '
            if "load_inline" in text or "cpp_extension" in text
            else ""
        )
        raise CandidateFolderError(f"{asked}: there is no .cu file under kernels/. {hint}{_FORM}")
    if len(sources) > MOST_FILES:
        raise CandidateFolderError(f"{asked}: {len(sources)} files under kernels/, at most {MOST_FILES} are read.")
    files = {str(path.relative_to(folder)): _read(folder, path) for path in [folder / MODEL_FILE, *sources]}
    return candidate_of(files)


def candidate_of(files: dict[str, str]) -> Candidate:
    """Return the native candidate made of `files`, relative path to text."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(name.encode() + b"\0" + files[name].encode() + b"\0")
    return Candidate(id=digest.hexdigest()[:16], form="native", files=dict(sorted(files.items())))


_FORM = 'A candidate is a folder with model_new.py (class ModelNew) and kernels/*.cu (extern "C" launchers).'


def _read(folder: Path, path: Path) -> str:
    asked = f"Candidate {folder}"
    if not path.resolve().is_relative_to(folder.resolve()):
        raise CandidateFolderError(
            f"{asked}: {path.relative_to(folder)} is a link that leads out of the folder. Copy the file."
        )
    size = path.stat().st_size
    if size > LARGEST_FILE_BYTES:
        raise CandidateFolderError(
            f"{asked}: {path.relative_to(folder)} has {size} bytes, at most {LARGEST_FILE_BYTES} are read."
        )
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CandidateFolderError(
            f"{asked}: {path.relative_to(folder)} is not UTF-8 text (byte {error.start}). Save it as UTF-8."
        ) from error
    except OSError as error:
        raise CandidateFolderError(f"{asked}: {path.relative_to(folder)} can't be read: {error.strerror}.") from error
