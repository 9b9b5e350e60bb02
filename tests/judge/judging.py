"""Judges candidates in this process on the emulated device, with one session a problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from cuda_agent import assemble
from cuda_agent.gates.devices import open_device
from cuda_agent.gates.workspace import candidate_of, read_candidate
from cuda_agent.problems.loader import load_problem
from cuda_agent.records.evidence import Evidence

HERE = Path(__file__).parent
SEED = 20

Edits: TypeAlias = Mapping[str, Sequence[tuple[str, str]]]
"""For a file of a candidate: texts that occur once in it, each with what takes its place."""


@dataclass
class Court:
    """Open sessions by problem; the first candidate of a problem opens its session."""

    stack: ExitStack
    sessions: dict[str, assemble.Session] = field(default_factory=dict)

    def judge(self, problem: str, folder: Path, edits: Edits | None = None) -> Evidence:
        """Judge the candidate in `folder`, after `edits`, against a problem's name or file."""
        files = dict(read_candidate(folder).files)
        for name, replacements in (edits or {}).items():
            for old, new in replacements:
                assert files[name].count(old) == 1, (
                    f"{folder.name}/{name}: {old!r} occurs {files[name].count(old)} times"
                )
                files[name] = files[name].replace(old, new)
        return self._session(problem).judge.judge(candidate_of(files))

    def _session(self, problem: str) -> assemble.Session:
        if problem not in self.sessions:
            self.sessions[problem] = self.stack.enter_context(
                assemble.open_session(
                    load_problem(problem),
                    device=open_device("emulated"),
                    protocol="strict",
                    seed=SEED,
                    on_report=lambda report: None,
                    on_progress=lambda gate, text: None,
                )
            )
        return self.sessions[problem]
