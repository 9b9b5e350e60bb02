"""Runs the same kernels on a real device, through the CUDA driver, to hold the reference itself to account."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np


class Driver:
    """One context on device 0; the driver compiles the PTX."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._check(self._cuda.cuInit(0))
        self._context = ctypes.c_void_p()
        self._check(self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), 0))
        self._check(self._cuda.cuCtxSetCurrent(self._context))
        self._module = ctypes.c_void_p()

    def load(self, text: str) -> None:
        """Compile a module."""
        log = ctypes.create_string_buffer(8192)
        options = (ctypes.c_int * 2)(5, 6)  # CU_JIT_ERROR_LOG_BUFFER and its size
        values = (ctypes.c_void_p * 2)(ctypes.cast(log, ctypes.c_void_p), ctypes.c_void_p(8192))
        code = self._cuda.cuModuleLoadDataEx(ctypes.byref(self._module), text.encode() + b"\0", 2, options, values)
        if code:
            raise RuntimeError(f"the driver refuses the module: {log.value.decode(errors='replace')}")

    def launch(self, kernel: str, threads: int, arrays: list[np.ndarray[Any, Any]]) -> None:
        """Run a kernel of one block over copies of the arrays, and copy them back."""
        function = ctypes.c_void_p()
        self._check(self._cuda.cuModuleGetFunction(ctypes.byref(function), self._module, kernel.encode()))
        there = [ctypes.c_uint64() for _ in arrays]
        for address, array in zip(there, arrays, strict=True):
            self._check(self._cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(array.nbytes)))
            self._check(
                self._cuda.cuMemcpyHtoD_v2(
                    address, array.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(array.nbytes)
                )
            )
        pointers = (ctypes.c_void_p * len(there))(*(ctypes.cast(ctypes.byref(x), ctypes.c_void_p) for x in there))
        self._check(self._cuda.cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, None, pointers, None))
        self._check(self._cuda.cuCtxSynchronize())
        for address, array in zip(there, arrays, strict=True):
            self._check(
                self._cuda.cuMemcpyDtoH_v2(
                    array.ctypes.data_as(ctypes.c_void_p), address, ctypes.c_size_t(array.nbytes)
                )
            )
            self._check(self._cuda.cuMemFree_v2(address))

    @staticmethod
    def _check(code: int) -> None:
        if code:
            raise RuntimeError(f"CUDA driver error {code}")
