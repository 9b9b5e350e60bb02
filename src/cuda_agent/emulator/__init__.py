"""The emulated device: CUDA kernels on the CPU, by interpreting the PTX that nvcc made, a warp at a time.

It knows nothing of problems or gates. A candidate's own host code runs unchanged against a stand-in for the CUDA
runtime; every access to memory is checked; what it lacks it refuses by name. It has no notion of time.
"""

from cuda_agent.emulator.build import built_library, core_library, host_headers
from cuda_agent.emulator.module import Fault, LaunchFault, launch, load_ptx
from cuda_agent.emulator.runtime import EMULATED_NVCC_FLAGS, Runtime, attach

__all__ = [
    "EMULATED_NVCC_FLAGS",
    "Fault",
    "LaunchFault",
    "Runtime",
    "attach",
    "built_library",
    "core_library",
    "host_headers",
    "launch",
    "load_ptx",
]
