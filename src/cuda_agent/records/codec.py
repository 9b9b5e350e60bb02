"""One way to turn records into JSON and back; every file on disk goes through it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def encode(record: Any, *, indent: int = 0) -> bytes:
    """Return `record` as UTF-8 JSON; `indent` > 0 makes it readable."""
    data = msgspec.json.encode(record)
    return msgspec.json.format(data, indent=indent) if indent else data


def decode(data: bytes | str, kind: type[T]) -> T:
    """Return the record of type `kind` in `data`; raises `msgspec.ValidationError` naming the wrong field."""
    return msgspec.json.decode(data, type=kind)


def write(path: Path, record: Any) -> None:
    """Write `record` to `path` whole or not at all: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(encode(record, indent=1) + b"\n")
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read(path: Path, kind: type[T]) -> T:
    """Return the record of type `kind` stored in `path`."""
    return decode(path.read_bytes(), kind)
