"""The content-addressed build cache: an entry is whole or absent, and a damaged one is a miss."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path

import msgspec

from cuda_agent.records import codec
from cuda_agent.records.candidate import Build

LIBRARY = "cuda_extension.so"
ABANDONED_AFTER_S = 6 * 3600.0


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    schema_version: int
    library_sha256: str
    build: Build


class BuildCache:
    """Builds by key, below one folder; safe under concurrent writers and a kill at any moment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, key: str) -> Build | None:
        """Return the build under `key`, None when there is none or its library is not the one that was stored."""
        entry_file = self._folder / key / "entry.json"
        library = self._folder / key / LIBRARY
        try:
            entry = codec.read(entry_file, _Entry)
            intact = hashlib.sha256(library.read_bytes()).hexdigest() == entry.library_sha256
        except (OSError, msgspec.MsgspecError):
            return None
        if entry.schema_version != 1 or not intact:
            return None
        return msgspec.structs.replace(entry.build, library=str(library), cached=True)

    def work_folder(self) -> Path:
        """Return a fresh folder to build in, on the same file system as the cache."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._remove_abandoned()
        return Path(tempfile.mkdtemp(dir=self._folder, prefix=".building."))

    def publish(self, key: str, library: Path, build: Build) -> Build:
        """Store a finished build under `key`; the first of several concurrent writers wins."""
        self._folder.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=self._folder, prefix=".publishing."))
        target = self._folder / key
        try:
            shutil.copyfile(library, fresh / LIBRARY)
            digest = hashlib.sha256((fresh / LIBRARY).read_bytes()).hexdigest()
            codec.write(fresh / "entry.json", _Entry(schema_version=1, library_sha256=digest, build=build))
            fresh.chmod(0o755)
            if self.find(key) is None:
                if target.exists():  # damaged: move it aside, so that a reader never sees a mixture
                    os.replace(target, fresh / "damaged")
                try:
                    os.rename(fresh, target)
                except OSError:
                    if self.find(key) is None:
                        raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return msgspec.structs.replace(build, library=str(target / LIBRARY))

    def _remove_abandoned(self) -> None:
        """Remove what builds left that were killed; a running one is younger than any build's time limit."""
        oldest = time.time() - ABANDONED_AFTER_S
        for pattern in (".building.*", ".publishing.*"):
            for folder in self._folder.glob(pattern):
                try:
                    abandoned = folder.stat().st_mtime < oldest
                except OSError:  # its owner has just removed it
                    continue
                if abandoned:
                    shutil.rmtree(folder, ignore_errors=True)
