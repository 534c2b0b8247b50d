"""GPUs as NVML, the library of NVIDIA's driver, shows them."""

from __future__ import annotations

import ctypes
from typing import NamedTuple, Self

LIBRARY = "libnvidia-ml.so.1"


class Utilisation(ctypes.Structure):
    """`nvmlUtilization_t`: per cent of the last sample period."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class DeviceMemory(ctypes.Structure):
    """`nvmlMemory_t`: bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class GpuReading(NamedTuple):
    """A GPU at one moment. Figures that the driver lacks, as of a part of a GPU (MIG), are None.

    Attributes:
        name: of the model.
        busy: share of the last moment, 1/6 to 1 s by model, in which it ran anything.
        used: bytes of its memory in use, by all programs.
        free: bytes of its memory that are free.
        total: bytes of its memory.
    """

    name: str
    busy: float | None = None
    used: int | None = None
    free: int | None = None
    total: int | None = None


class Nvml:
    """The library in this process, until `close()`. Not thread safe.

    Attributes:
        code: of the library's start; not 0 if it failed.
        uuids: of the GPUs, in the driver's order.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.code = int(library.nvmlInit_v2())
        self._handles: list[ctypes.c_void_p | None] = []
        self._names: list[str] = []
        self.uuids: list[str] = []
        count = ctypes.c_uint()
        if self.code or library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return
        for number in range(count.value):
            handle = ctypes.c_void_p()
            name, uuid = ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
            if code := library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)):
                name.value = f"cannot be read (code {code})".encode()
            else:
                library.nvmlDeviceGetName(handle, name, len(name))
                library.nvmlDeviceGetUUID(handle, uuid, len(uuid))
            self._handles.append(None if code else handle)
            self._names.append(name.value.decode(errors="replace"))
            self.uuids.append(uuid.value.decode(errors="replace"))

    @classmethod
    def opened(cls) -> Self | None:
        """Returns the started library; None where there is no driver."""
        try:
            library = ctypes.CDLL(LIBRARY)
        except OSError:
            return None
        return cls(library)

    def readings(self) -> list[GpuReading]:
        """Returns a reading of each GPU, in the driver's order."""
        return [self._reading(handle, name) for handle, name in zip(self._handles, self._names, strict=True)]

    def _reading(self, handle: ctypes.c_void_p | None, name: str) -> GpuReading:
        rates, memory, reading = Utilisation(), DeviceMemory(), GpuReading(name)
        if handle is None:
            return reading
        if not self._library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)):
            reading = reading._replace(busy=rates.gpu / 100)
        if not self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
            reading = reading._replace(used=int(memory.used), free=int(memory.free), total=int(memory.total))
        return reading

    def close(self) -> None:
        """Shuts the library down."""
        if not self.code:
            self._library.nvmlShutdown()
