"""A run folder: what was asked, every turn, every verdict, and the best candidate.

```text
run.json            what was asked (records.run.Run)
problem.py          the problem's text
episode.jsonl       one turn a line
workspace/          the candidate being worked on
verdicts/NNN.json   the evidence of every judgement, in order
best/               model_new.py, kernels/ and evidence.json of the best candidate
ending.json         how the episode ended
```
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from cuda_agent.errors import UserError
from cuda_agent.records import codec
from cuda_agent.records.candidate import Candidate
from cuda_agent.records.episode import Ending, Turn
from cuda_agent.records.evidence import Evidence
from cuda_agent.records.run import RUN_SCHEMA_VERSION, Run
from cuda_agent.store.journal import Journal


def utc_now() -> str:
    """Return the present as ISO 8601 UTC to the second, `2026-11-30T23:59:59Z`."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def default_run_folder(problem_name: str, parent: Path) -> Path:
    """Return a fresh path under `parent` named by time and problem."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    stem = f"{stamp}-{problem_name.replace('/', '-')}"
    path, number = parent / stem, 2
    while path.exists():
        path, number = parent / f"{stem}-{number}", number + 1
    return path


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path, run: Run) -> None:
        self.path = path
        self.run = run
        self.turns: Journal[Turn] = Journal(path / "episode.jsonl", Turn)

    @staticmethod
    def check_free(path: Path) -> None:
        """Raise `UserError` when `path` already holds something."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UserError(
                f"--out {path}: it already exists and is not empty. Name another folder, or continue that run with "
                "--resume."
            )

    @classmethod
    def create(cls, path: Path, run: Run) -> RunFolder:
        """Make the folder, whole or not at all; raises `UserError` when it already holds something."""
        with cls.creating(path, run):
            pass
        return cls(path, run)

    @classmethod
    @contextmanager
    def creating(cls, path: Path, run: Run) -> Generator[RunFolder]:
        """Give a folder to fill that is moved to `path` at the end, and removed when filling it fails.

        Raises:
            UserError: `path` already holds something.
        """
        cls.check_free(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        try:
            fresh.chmod(0o755)
            (fresh / "problem.py").write_text(run.problem.source, encoding="utf-8")
            codec.write(fresh / "run.json", run)
            yield cls(fresh, run)
            fresh.rename(path)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run; raises `UserError` when there is none, or it is of another version."""
        file = path / "run.json"
        if not file.is_file():
            raise UserError(f"{path}: no run.json there, so it is not a run folder. Give the folder of a run.")
        try:
            run = codec.read(file, Run)
        except msgspec.MsgspecError as error:
            raise UserError(f"{file}: not readable as a run: {error}.") from error
        if run.schema_version != RUN_SCHEMA_VERSION:
            raise UserError(
                f"{file}: schema version {run.schema_version}, this version reads {RUN_SCHEMA_VERSION}. "
                "Use the version of CUDA Agent that wrote it."
            )
        return cls(path, run)

    @property
    def workspace(self) -> Path:
        """The folder in which the policy writes its candidate."""
        return self.path / "workspace"

    @property
    def best(self) -> Path:
        """The folder of the best candidate; absent until one was judged."""
        return self.path / "best"

    def best_evidence(self) -> Evidence | None:
        """Return the evidence of the best candidate, None until there is one."""
        file = self.best / "evidence.json"
        return codec.read(file, Evidence) if file.is_file() else None

    def ending(self) -> Ending | None:
        """Return how the episode ended, None while it has not."""
        file = self.path / "ending.json"
        return codec.read(file, Ending) if file.is_file() else None

    def add_verdict(self, evidence: Evidence) -> Path:
        """Store one judgement under the next number and return its path."""
        folder = self.path / "verdicts"
        taken = [int(file.stem) for file in folder.glob("[0-9]*.json")]
        path = folder / f"{max(taken, default=0) + 1:03d}.json"
        codec.write(path, evidence)
        return path

    def promote(self, evidence: Evidence) -> None:
        """Make `evidence` and its candidate the best; the old best stays until the new one is whole."""
        self.path.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=self.path, prefix=".best."))
        try:
            write_candidate(evidence.candidate, fresh)
            codec.write(fresh / "evidence.json", evidence)
            fresh.chmod(0o755)
            if self.best.exists():
                shutil.rmtree(self.best)
            fresh.rename(self.best)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise

    def finish(self, ending: Ending) -> None:
        """Store how the episode ended."""
        codec.write(self.path / "ending.json", ending)


def write_candidate(candidate: Candidate, folder: Path) -> None:
    """Write the candidate's files below `folder`."""
    for name, text in candidate.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
