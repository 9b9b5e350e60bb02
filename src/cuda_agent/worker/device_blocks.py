"""Device memory that another process reads: blocks of their own, each announced by a small file.

A gigabyte that goes from one process to the next through files costs some tenths of a second for every copy; through a
block it is a copy on the device. The file at the agreed path is the block's lease: once somebody deletes it, the
block is reused, for files of the same folder only. So a reader that keeps a block mapped sees later tensors of the
same kind (inputs, say) and never those of another (expected values).
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

SMALLEST_BYTES = 4 << 20
"""Smaller tensors go through files. A block must not share its 2 MiB page with other memory of this process, since
whole pages are opened to the reader."""
_PAGE = 2 << 20
_MAGIC = b"cudablok"
_HANDLE_BYTES = 64
_FILE = struct.Struct(f"<8s{_HANDLE_BYTES}sQ")
FILE_BYTES = _FILE.size


class Unreadable(ValueError):
    """The file announces no block that can be opened."""


class _Handle(ctypes.Structure):
    """`CUipcMemHandle`."""

    _fields_ = (("reserved", ctypes.c_char * _HANDLE_BYTES),)


class _Area:
    """Device memory that torch did not allocate, in the form that `torch.as_tensor` takes without a copy."""

    def __init__(self, pointer: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (pointer, False), "version": 3}


class _Block:
    def __init__(self, pointer: int, size: int, handle: bytes) -> None:
        self.pointer = pointer
        self.size = size
        self.handle = handle


class Blocks:
    """The blocks of this process on the current CUDA device, by the path that announces them."""

    def __init__(self) -> None:
        self._driver: Any = None
        self._leased: dict[Path, _Block] = {}
        self._free: dict[Path, list[_Block]] = {}
        self._possible = True

    def put(self, data: torch.Tensor, path: Path) -> bool:
        """Copy flat `uint8` memory of a device into a block and announce it at `path`.

        False where that can't be: no room, or a driver that shares no memory between processes.
        """
        if not self._possible:
            return False
        self._sweep()
        block = self._block(data.numel(), path.parent)
        if block is None:
            return False
        self._view(block.pointer, data.numel(), data.device).copy_(data)
        torch.cuda.synchronize(data.device)
        self._leased[path] = block
        path.write_bytes(_FILE.pack(_MAGIC, block.handle, data.numel()))
        return True

    @contextmanager
    def opened(self, text: bytes, path: Path, size: int, device: torch.device) -> Iterator[torch.Tensor]:
        """Give the first `size` bytes of the block that `text`, the file at `path`, announces.

        Raises:
            Unreadable: it is none, is smaller, or its process is gone.
        """
        if len(text) != _FILE.size:
            raise Unreadable(f"the file has {len(text)} bytes and announces no device memory")
        magic, handle, announced = _FILE.unpack(text)
        if magic != _MAGIC or announced != size:
            raise Unreadable(f"the file announces {announced} bytes of device memory where {size} were expected")
        own = self._leased.get(path)
        if own is not None and own.handle == handle:  # a process can't open its own handle
            yield self._view(own.pointer, size, device)
            return
        driver = self._library()
        torch.cuda.synchronize(device)  # makes the device's context this thread's
        pointer = ctypes.c_uint64()
        lazy_peer_access = 1
        code = driver.cuIpcOpenMemHandle_v2(ctypes.byref(pointer), _Handle.from_buffer_copy(handle), lazy_peer_access)
        if code:
            raise Unreadable(f"the announced device memory can't be opened (CUDA error {code})")
        try:
            base, whole = ctypes.c_uint64(), ctypes.c_size_t()
            code = driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(whole), pointer)
            if code or base.value + whole.value < pointer.value + size:
                raise Unreadable(f"the announced device memory has {whole.value} bytes where {size} were expected")
            yield self._view(pointer.value, size, device)
        finally:
            torch.cuda.synchronize(device)
            driver.cuIpcCloseMemHandle(pointer)

    def _sweep(self) -> None:
        """Take back the blocks whose files are gone."""
        gone = [path for path in self._leased if not os.path.lexists(path)]
        for path in gone:
            self._free.setdefault(path.parent, []).append(self._leased.pop(path))

    def _block(self, size: int, folder: Path) -> _Block | None:
        free = self._free.setdefault(folder, [])
        fitting = [block for block in free if size <= block.size <= 2 * size]
        if fitting:
            best = min(fitting, key=lambda block: block.size)
            free.remove(best)
            return best
        driver = self._library()
        for block in free:
            driver.cuMemFree_v2(ctypes.c_uint64(block.pointer))
        free.clear()
        pointer = ctypes.c_uint64()
        whole = -(-size // _PAGE) * _PAGE
        if driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(whole)):
            return None
        handle = _Handle()
        if driver.cuIpcGetMemHandle(ctypes.byref(handle), pointer):
            self._possible = False
            driver.cuMemFree_v2(pointer)
            return None
        return _Block(pointer.value, whole, bytes(handle))

    def _library(self) -> Any:
        if self._driver is None:
            driver = ctypes.CDLL("libcuda.so.1")
            driver.cuIpcOpenMemHandle_v2.argtypes = (ctypes.c_void_p, _Handle, ctypes.c_uint)
            self._driver = driver
        return self._driver

    @staticmethod
    def _view(pointer: int, size: int, device: torch.device) -> torch.Tensor:
        return torch.as_tensor(_Area(pointer, size), device=device)


BLOCKS = Blocks()
"""Those of this process; empty until a tensor on a CUDA device is handed over."""
