"""Checks of GPUs by NVML, NVIDIA's library for it, if its driver is there."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

from stoker.diagnostics.checks.finding import Finding

LIBRARY = "libnvidia-ml.so.1"


class Utilisation(ctypes.Structure):
    """`nvmlUtilization_t`: per cent of the last sample period."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class DeviceMemory(ctypes.Structure):
    """`nvmlMemory_t`: bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def utilisation() -> Iterator[Finding]:
    """Yields each GPU's utilisation and memory at this moment; nothing where there is no driver."""
    try:
        nvml = ctypes.CDLL(LIBRARY)
    except OSError:
        return
    if code := nvml.nvmlInit_v2():
        yield Finding(
            "GPUs",
            "problem",
            f"NVML, the library of the NVIDIA driver, does not start (code {code})",
            "No program can use the GPUs.",
            "nvidia-smi says why; in a container: docker run --gpus all",
        )
        return
    try:
        count = ctypes.c_uint()
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        for number in range(count.value):
            yield Finding(f"GPU {number}", "fine", _described(nvml, number))
    finally:
        nvml.nvmlShutdown()


def _described(nvml: Any, number: int) -> str:
    handle = ctypes.c_void_p()
    if code := nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)):
        return f"cannot be read (code {code})"
    name, used, memory = ctypes.create_string_buffer(96), Utilisation(), DeviceMemory()
    nvml.nvmlDeviceGetName(handle, name, len(name))
    parts = [name.value.decode(errors="replace")]
    if not nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(used)):
        parts.append(f"busy {used.gpu}% of the last moment")
    if not nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
        parts.append(f"{memory.free / 2**30:.1f} GiB free of {memory.total / 2**30:.1f} GiB")
    return ", ".join(parts)
