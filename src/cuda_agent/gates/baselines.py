"""The baseline cache: how fast eager and compiled references are, measured side by side once per machine and problem."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from cuda_agent.records import codec
from cuda_agent.records.stopwatch import BaselineKey, BaselineRun

BASELINE_SCHEMA_VERSION = 1


class BaselineCache:
    """Baseline runs by everything that could change them; a damaged or foreign entry is a miss."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, key: BaselineKey) -> BaselineRun | None:
        """Return the run stored under `key`, None when there is none that can be trusted."""
        try:
            run = codec.read(self._path(key), BaselineRun)
        except (OSError, msgspec.MsgspecError):
            return None
        return run if run.key == key and run.schema_version == BASELINE_SCHEMA_VERSION else None

    def store(self, run: BaselineRun) -> None:
        """Store a run; a reader sees the old one or the new one, never half of one."""
        codec.write(self._path(run.key), run)

    def _path(self, key: BaselineKey) -> Path:
        return self._folder / f"{hashlib.sha256(codec.encode(key)).hexdigest()[:32]}.json"
