"""A stand-in for NVML, the library of NVIDIA's driver."""

from __future__ import annotations

from typing import Any


class FakeDriver:
    """NVML with some GPUs.

    Attributes:
        code: what it answers to `nvmlInit`.
        busy, used: per cent and bytes that it tells.
        unknown: code with which it refuses both, if not 0.
    """

    def __init__(self, code: int = 0, gpus: int = 1) -> None:
        self.code = code
        self.gpus = gpus
        self.busy, self.used, self.unknown = 37, 60 << 30, 0
        self.is_open = False

    def nvmlInit_v2(self) -> int:
        self.is_open = not self.code
        return self.code

    def nvmlShutdown(self) -> int:
        self.is_open = False
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = self.gpus
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, number: int, handle: Any) -> int:
        handle._obj.value = number + 1
        return 0

    def nvmlDeviceGetName(self, handle: Any, name: Any, size: int) -> int:
        name.value = b"NVIDIA Z1"
        return 0

    def nvmlDeviceGetUUID(self, handle: Any, uuid: Any, size: int) -> int:
        uuid.value = b"GPU-%d0a1" % handle.value
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: Any, used: Any) -> int:
        used._obj.gpu = self.busy
        return self.unknown

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory._obj.total, memory._obj.free, memory._obj.used = 80 << 30, (80 << 30) - self.used, self.used
        return self.unknown
