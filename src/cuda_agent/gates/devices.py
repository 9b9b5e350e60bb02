"""Which devices are here, found without importing torch or making a CUDA context."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import msgspec

from cuda_agent.errors import DeviceError
from cuda_agent.records.evidence import Device
from cuda_agent.records.timing import DeviceState

EMULATED = Device(
    name="emulated", model="emulated device (CPU)", architecture="compute_90a", driver="", multiprocessors=0
)

# Architectures whose full instruction set needs the `a` suffix: Hopper and the Blackwell family.
# Source: CUDA C++ Programming Guide, "Compute capabilities: architecture-specific features".
_ARCHITECTURE_SPECIFIC_FROM = (9, 0)

# FP32 cores in one multiprocessor, for turning NVML's core count into multiprocessors.
# Source: CUDA C++ Programming Guide, "Arithmetic instructions": 64 on 7.x and 8.0, 128 after.
_CORES_PER_MULTIPROCESSOR = {(7, 0): 64, (7, 5): 64, (8, 0): 64}


class TorchBuild(msgspec.Struct, frozen=True, kw_only=True):
    """The installed torch, read from its files."""

    version: str
    """`2.13.0+cpu`; empty when torch is not installed."""
    cuda: str
    """CUDA version it was built for; empty for a CPU build."""


def installed_torch() -> TorchBuild:
    """Return which torch this interpreter would import."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return TorchBuild(version="", cuda="")
    text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    version = re.search(r"^__version__\s*=\s*'([^']*)'", text, re.M)
    cuda = re.search(r"^cuda\b[^=]*=\s*'([^']*)'", text, re.M)
    return TorchBuild(version=version[1] if version else "", cuda=cuda[1] if cuda else "")


def cuda_devices() -> tuple[Device, ...]:
    """Return the CUDA devices NVML sees, in NVML's order; empty where there is no driver."""
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        return tuple(_device(pynvml, index, driver) for index in range(pynvml.nvmlDeviceGetCount()))
    finally:
        pynvml.nvmlShutdown()


def open_device(name: str) -> Device:
    """Return the device called `name`: `auto`, `emulated` or `cuda:N` (`cuda` is `cuda:0`).

    `auto` is the first CUDA device where there is one that torch can use, else the emulated device.

    Raises:
        DeviceError: the name is not understood, there is no such device, or torch is a CPU build.
    """
    if name == "emulated":
        return EMULATED
    if name == "auto":
        devices = cuda_devices() if installed_torch().cuda else ()
        return devices[0] if devices else EMULATED
    match = re.fullmatch(r"cuda(?::(\d+))?", name)
    if match is None:
        raise DeviceError(f"--device {name}: not a device name. Use auto, emulated, or cuda:N such as cuda:0.")
    index = int(match[1] or 0)
    devices = cuda_devices()
    if index >= len(devices):
        found = ", ".join(f"{d.name} ({d.model})" for d in devices) or "no CUDA device"
        raise DeviceError(
            f"--device {name}: this machine has {found}. "
            "Use --device emulated, which needs no GPU, or one that is there."
        )
    torch = installed_torch()
    if not torch.cuda:
        raise DeviceError(
            f"--device {name}: {devices[index].model} is there, but the installed torch {torch.version} is a "
            "CPU build. Install a CUDA build of torch, or use --device emulated."
        )
    return devices[index]


def _device(nvml: ModuleType, index: int, driver: str) -> Device:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    suffix = "a" if (major, minor) >= _ARCHITECTURE_SPECIFIC_FROM else ""
    cores = nvml.nvmlDeviceGetNumGpuCores(handle)
    return Device(
        name=f"cuda:{index}",
        model=_text(nvml.nvmlDeviceGetName(handle)),
        architecture=f"sm_{major}{minor}{suffix}",
        driver=driver,
        multiprocessors=cores // _CORES_PER_MULTIPROCESSOR.get((major, minor), 128),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def device_state(device: Device, uuid: str = "") -> DeviceState | None:
    """Return clocks, temperature, power and throttling of a CUDA device; None where NVML can't be read.

    `uuid` (`GPU-...`) names the device for certain; NVML's numbers differ from CUDA's where `CUDA_VISIBLE_DEVICES`
    is set.
    """
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        if uuid:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        else:
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(device.name.removeprefix("cuda:")))
        power = _read(pynvml, lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
        return DeviceState(
            sm_clock_mhz=_read(pynvml, lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
            memory_clock_mhz=_read(pynvml, lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
            temperature_c=_read(pynvml, lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
            power_w=None if power is None else power / 1000,
            throttle_reasons=_throttle_reasons(
                _read(pynvml, lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
            ),
        )
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _read(nvml: ModuleType, action: Callable[[], int]) -> int | None:
    try:
        return action()
    except nvml.NVMLError:
        return None


# Bits of nvmlDeviceGetCurrentClocksThrottleReasons; "idle" and "applications clocks" hold nothing down.
# Source: nvml.h, nvmlClocksThrottleReasons.
_THROTTLE_BITS = {
    0x4: "sw power cap",
    0x8: "hw slowdown",
    0x20: "sw thermal slowdown",
    0x40: "hw thermal slowdown",
    0x80: "hw power brake",
}


def _throttle_reasons(bits: int | None) -> tuple[str, ...] | None:
    return None if bits is None else tuple(name for bit, name in _THROTTLE_BITS.items() if bits & bit)
