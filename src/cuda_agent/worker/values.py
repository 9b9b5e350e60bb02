"""Structures of tensors and plain values, as records and raw files.

Reading a structure that came from a candidate never unpickles anything.
"""

from __future__ import annotations

import base64
import contextlib
import math
import os
import pickle
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch

from cuda_agent.records.verification import (
    MappingNode,
    PlainLeaf,
    SequenceNode,
    TensorFile,
    TensorLeaf,
    Tree,
    Values,
)
from cuda_agent.worker.device_blocks import BLOCKS, FILE_BYTES, SMALLEST_BYTES

CHUNK_BYTES = 64 << 20
"""Of one copy between a device and a file."""


def flatten(value: Any, *, pickled: bool) -> tuple[Tree, list[torch.Tensor]]:
    """Split `value` into its structure and its tensors, in order.

    Args:
        pickled: keep plain values and keys so that `rebuild` can bring them back; only for trusted values.
    """
    tensors: list[torch.Tensor] = []
    return _flatten(value, tensors, pickled), tensors


def rebuild(tree: Tree, tensors: list[torch.Tensor]) -> Any:
    """Undo `flatten(..., pickled=True)`. Trusted trees only: this unpickles."""
    if isinstance(tree, TensorLeaf):
        return tensors[tree.index]
    if isinstance(tree, PlainLeaf):
        return pickle.loads(base64.b64decode(tree.pickled))
    if isinstance(tree, SequenceNode):
        items = [rebuild(item, tensors) for item in tree.items]
        return tuple(items) if tree.type == "tuple" else items
    keys = pickle.loads(base64.b64decode(tree.pickled_keys))
    return {key: rebuild(item, tensors) for key, (_, item) in zip(keys, tree.items, strict=True)}


def write_values(value: Any, folder: Path, stem: str, *, pickled: bool, shared: bool = False) -> Values:
    """Write the tensors of `value` to `folder/stem-<index>.bin`; `shared` as in `write_tensor`."""
    tree, tensors = flatten(value, pickled=pickled)
    files = [
        write_tensor(tensor, folder / f"{stem}-{index}.bin", shared=shared) for index, tensor in enumerate(tensors)
    ]
    return Values(tree=tree, tensors=tuple(files))


def read_values(values: Values, device: str) -> Any:
    """Undo `write_values(..., pickled=True)`, with fresh tensors on `device`."""
    return rebuild(values.tree, [read_tensor(file, device) for file in values.tensors])


def write_tensor(tensor: torch.Tensor, path: Path, *, shared: bool = False) -> TensorFile:
    """Write the elements of a strided tensor, in row-major order, to a new file at `path`.

    Args:
        shared: large elements on a CUDA device may stay there, where this process keeps them for as long as it lives
            and the file exists.
    """
    tensor = tensor.detach().resolve_conj().resolve_neg()
    dense = not tensor.is_contiguous() and tensor.numel() > 0 and _is_dense(tensor)
    record = TensorFile(
        file=str(path) if tensor.numel() else "",
        dtype=dtype_name(tensor.dtype),
        shape=tuple(tensor.shape),
        stride=tuple(tensor.stride()) if dense else None,
    )
    if tensor.numel():
        data = as_bytes(tensor)
        if shared and data.is_cuda and data.numel() >= SMALLEST_BYTES and BLOCKS.put(data, path):
            return msgspec.structs.replace(record, on_device=True)
        with path.open("wb", buffering=0) as file:
            for _, part in _parts(data):
                if part.device.type != "cpu":
                    part = _staging(part.numel()).copy_(part)
                _write_whole(file.fileno(), part.numpy().data)
    return record


def read_tensor(file: TensorFile, device: str) -> torch.Tensor:
    """Return a fresh tensor on `device` with the contents of `file`.

    Raises:
        ValueError: the file is missing, is no regular file or has another size than dtype and shape say.
    """
    dtype = dtype_of(file.dtype)
    if file.stride is not None:
        tensor = torch.empty_strided(file.shape, file.stride, dtype=dtype, device=device)
        tensor.copy_(read_tensor(msgspec.structs.replace(file, stride=None), device))
        return tensor
    tensor = torch.empty(file.shape, dtype=dtype, device=device)
    read_into(file, as_bytes(tensor))
    return tensor


def read_into(file: TensorFile, target: torch.Tensor) -> None:
    """Copy the bytes of `file` into the flat `uint8` tensor `target`; raises ValueError like `read_tensor`."""
    if file.on_device:
        with _block(file, target) as block:
            target.copy_(block)
        return
    with _opened(file, target.numel()) as descriptor:
        if target.device.type == "cpu":
            _read_whole(descriptor, target.numpy().data)
            return
        for start, part in _parts(target):
            staging = _staging(part.numel())
            _read_whole(descriptor, staging.numpy().data)
            target[start : start + part.numel()].copy_(staging)


def holds(tensor: torch.Tensor, file: TensorFile) -> bool:
    """Return whether `tensor` has the bytes of `file`; raises ValueError like `read_tensor`."""
    now = as_bytes(tensor)
    if file.on_device:
        with _block(file, now) as block:
            return torch.equal(now, block)
    with _opened(file, now.numel()) as descriptor:
        for _, part in _parts(now):
            then = torch.empty(part.numel(), dtype=torch.uint8)
            _read_whole(descriptor, then.numpy().data)
            if not torch.equal(part, then.to(part.device)):
                return False
    return True


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements in row-major order as a flat `uint8` tensor, a view where that is possible."""
    flat = tensor.contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    return flat.view(torch.uint8)


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """Undo `dtype_name`; raises ValueError for a name that torch lacks."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch has no dtype {name!r}")
    return dtype


def storage_range(tensor: torch.Tensor) -> tuple[int, int]:
    """First and one-past-last address of the elements of a strided tensor."""
    if tensor.numel() == 0:
        return 0, 0
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()


def shared_memory(outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> tuple[tuple[int, int], ...]:
    """(output, input) index pairs whose address ranges overlap on one device."""
    pairs = []
    for o, output in enumerate(outputs):
        for i, given in enumerate(inputs):
            if output.device == given.device:
                a, b = storage_range(output), storage_range(given)
                if max(a[0], b[0]) < min(a[1], b[1]):
                    pairs.append((o, i))
    return tuple(pairs)


@contextlib.contextmanager
def _block(file: TensorFile, like: torch.Tensor) -> Iterator[torch.Tensor]:
    """Open the device memory that `file` announces, as many bytes as `like` has."""
    if not like.is_cuda:
        raise ValueError("the file announces device memory, and the tensor does not lie on a CUDA device")
    with _opened(file, FILE_BYTES) as descriptor:
        text = os.read(descriptor, FILE_BYTES)
    with BLOCKS.opened(text, Path(file.file), like.numel(), like.device) as block:
        yield block


@contextlib.contextmanager
def _opened(file: TensorFile, size: int) -> Iterator[int]:
    """Open a file that must have `size` bytes; the name may come from a candidate."""
    if size == 0:
        yield -1
        return
    try:
        descriptor = os.open(file.file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ValueError(f"no readable file ({error.strerror})") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size != size:
            raise ValueError(f"the file has {found.st_size} bytes where {size} were expected")
        yield descriptor
    finally:
        os.close(descriptor)


def _read_whole(descriptor: int, area: memoryview) -> None:
    # read() rather than a mapping: a file that another process cuts short must not become a SIGBUS.
    while area:
        count = os.readv(descriptor, [area])
        if count == 0:
            raise ValueError("the file was cut short while it was read")
        area = area[count:]


def _parts(flat: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    for start in range(0, flat.numel(), CHUNK_BYTES):
        yield start, flat[start : start + CHUNK_BYTES]


def _staging(count: int) -> torch.Tensor:
    """Page-locked host memory, which a device copies from and to at full rate."""
    return torch.empty(count, dtype=torch.uint8, pin_memory=True)


def _write_whole(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _flatten(value: Any, tensors: list[torch.Tensor], pickled: bool) -> Tree:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return TensorLeaf(index=len(tensors) - 1)
    if isinstance(value, dict):
        keys = list(value) if pickled else sorted(value, key=repr)
        items = tuple((repr(key), _flatten(value[key], tensors, pickled)) for key in keys)
        return MappingNode(items=items, pickled_keys=_pickled(keys) if pickled else "")
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        kind = "list" if isinstance(value, list) else "tuple"
        return SequenceNode(type=kind, items=tuple(_flatten(item, tensors, pickled) for item in value))  # type: ignore[arg-type]
    text = repr(value)[:200]
    return PlainLeaf(type=type(value).__name__, text=text, pickled=_pickled(value) if pickled else "")


def _pickled(value: Any) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their address range without gaps or overlaps."""
    start, end = storage_range(tensor)
    steps = [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
    overlapping = 0 in steps or len(set(steps)) != len(steps)
    return not overlapping and (end - start) == math.prod(tensor.shape) * tensor.element_size()
