"""Activity of the GPUs while a program runs, read by another process through NVML, the library of NVIDIA's driver."""

from __future__ import annotations

import bisect
import ctypes
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple, Self

INTERVAL = 0.25
"""Seconds between samples, at least."""

CONTEXT = 64 << 20
"""Bytes by which a GPU's memory grows, at least, when a program begins to use it: CUDA itself takes more."""

MOST = 20_000
"""Samples that are kept; of more, every second one is left out."""


@dataclass(frozen=True)
class GpuSample:
    """The GPUs at one moment.

    Attributes:
        time: seconds of `time.perf_counter()`.
        readings: by number; None of those that the program may not use.
    """

    time: float
    readings: tuple[GpuReading | None, ...]


class GpuActivity:
    """Samples the GPUs that a program may use; without a driver there are no samples.

    Args:
        environment: of the program, whose CUDA_VISIBLE_DEVICES says which these are.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._nvml = Nvml.opened()
        self._visible = visible([] if self._nvml is None else self._nvml.uuids, environment)
        self._due = 0.0
        self.samples: list[GpuSample] = []

    def sample_if_due(self) -> None:
        """Takes a sample, unless the latest one is too recent."""
        now = time.perf_counter()
        if self._nvml is None or not self._visible or now < self._due:
            return
        self._due = now + INTERVAL
        readings = enumerate(self._nvml.readings())
        self.samples.append(GpuSample(now, tuple(one if number in self._visible else None for number, one in readings)))
        if len(self.samples) > MOST:
            del self.samples[1:-1:2]

    def close(self) -> None:
        """Lets the library go; `samples` stay."""
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None


def visible(uuids: Sequence[str], environment: Mapping[str, str]) -> set[int]:
    """Returns the numbers of the GPUs that CUDA_VISIBLE_DEVICES leaves: all, if it is not set.

    As CUDA reads it: numbers, or beginnings of UUIDs, up to the first that stands for no GPU.
    """
    words = environment.get("CUDA_VISIBLE_DEVICES")
    if words is None:
        return {*range(len(uuids))}
    numbers: set[int] = set()
    for word in words.split(","):
        text = word.strip()
        fitting = [number for number, uuid in enumerate(uuids) if text and text in (str(number), uuid[: len(text)])]
        if len(fitting) != 1:
            break
        numbers.add(fitting[0])
    return numbers


def used_gpus(samples: Sequence[GpuSample]) -> list[int]:
    """Returns the numbers of the GPUs that the program used: those whose memory grew since the first sample.

    Where the driver does not tell the memory, those that were busy.
    """
    used = []
    for number in range(len(samples[0].readings) if samples else 0):
        readings = [one for one in (sample.readings[number] for sample in samples) if one is not None]
        memory = [one.used for one in readings if one.used is not None]
        if max(memory) - memory[0] >= CONTEXT if memory else any(one.busy for one in readings):
            used.append(number)
    return used


def bus_of(samples: Sequence[GpuSample]) -> float | None:
    """Returns the bytes in a second that the link of the program's GPUs carries, of several the slowest one's."""
    found = [samples[0].readings[number] for number in used_gpus(samples)]
    links = [one.bus for one in found if one is not None and one.bus is not None]
    return min(links, default=None)


def busy_between(samples: Sequence[GpuSample], used: Sequence[int], begin: float, end: float) -> float | None:
    """Returns the mean share of a time in which GPUs were busy; None if that is not known.

    Args:
        samples: in order.
        used: the numbers of the GPUs.
        begin: of the time, in seconds of `time.perf_counter()`.
    """
    if not used:
        return None
    first = bisect.bisect_left(samples, begin, key=lambda sample: sample.time)
    last = bisect.bisect_right(samples, end, key=lambda sample: sample.time)
    shares = [
        reading.busy
        for number in used
        for sample in samples[first : max(last, first + 1)]  # of a time between two samples, the next one
        if (reading := sample.readings[number]) is not None and reading.busy is not None
    ]
    return fmean(shares) if shares else None


# GPUs as NVML, the library of NVIDIA's driver, shows them.


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
        bus: bytes in a second that its PCI Express link carries at most, in one direction.
    """

    name: str
    busy: float | None = None
    used: int | None = None
    free: int | None = None
    total: int | None = None
    bus: float | None = None


LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""GB in a second of one lane of PCI Express, by its generation."""


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
        self._links: list[float | None] = []
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
            self._links.append(None if code else _link(library, handle))
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
        gpus = zip(self._handles, self._names, self._links, strict=True)
        return [self._reading(handle, GpuReading(name, bus=bus)) for handle, name, bus in gpus]

    def _reading(self, handle: ctypes.c_void_p | None, reading: GpuReading) -> GpuReading:
        rates, memory = Utilisation(), DeviceMemory()
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


def _link(library: ctypes.CDLL, handle: ctypes.c_void_p) -> float | None:
    """Returns the bytes in a second of a GPU's link, as fast as it gets: an idle one is slower, to save power."""
    generation, width = ctypes.c_uint(), ctypes.c_uint()
    try:
        if library.nvmlDeviceGetMaxPcieLinkGeneration(handle, ctypes.byref(generation)):
            return None
        if library.nvmlDeviceGetMaxPcieLinkWidth(handle, ctypes.byref(width)):
            return None
    except AttributeError:  # of an older driver
        return None
    lane = LANE.get(generation.value)
    return None if lane is None else lane * 1e9 * width.value
