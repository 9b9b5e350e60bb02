"""Builds CUDA C++ for the emulated device as the compile gate does, and calls its launchers from Python."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import ModuleType

from cuda_agent import assemble, emulator
from cuda_agent.gates import toolkit
from cuda_agent.records.candidate import Build, Candidate
from cuda_agent.worker.candidate_module import load_extension

CORPUS = Path(__file__).parent / "corpus"


def build(files: dict[str, str]) -> ModuleType:
    """Return the extension module of some kernel files, by name and text."""
    named = {f"kernels/{name}": text for name, text in files.items()}
    key = hashlib.sha256(repr(sorted(named.items())).encode()).hexdigest()[:16]
    gate = assemble.open_compile_gate(toolkit.discover())
    built = gate.build(Candidate(id=key, form="native", files=named), target="emulated", architectures=("compute_90",))
    assert isinstance(built, Build), built
    emulator.attach()
    return load_extension(built.library, emulated=True)


def corpus(name: str) -> ModuleType:
    """Return the module of one file of the corpus."""
    return build({f"{name}.cu": (CORPUS / f"{name}.cu").read_text(encoding="utf-8")})
