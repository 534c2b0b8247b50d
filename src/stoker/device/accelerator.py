"""An accelerator, as the transfer of batches uses it: streams, events, copies, and registered memory of the host.

`CopyDevice` is all that the transfer knows of a device, so tests put another one in its place. It is called in
`next()` and `close()` alone, by the trainer's thread: it makes the CUDA context.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from contextlib import AbstractContextManager
from typing import Any, Protocol

from stoker import errors


class DeviceEvent(Protocol):
    """A mark in a stream: it has come when the work in front of it is done."""

    def query(self) -> bool:
        """Returns whether it has come. Does not wait."""

    def synchronize(self) -> None:
        """Waits until it has come."""


class DeviceStream(Protocol):
    """A queue of work for a device, done in order."""

    def record_event(self, event: Any = None) -> Any:
        """Puts an event behind the work so far."""

    def wait_event(self, event: Any) -> None:
        """Makes later work of this stream wait for an event, also of another stream."""


class CopyDevice:
    """A device, by torch's module of its type (`torch.cuda`, `torch.xpu`).

    Args:
        device: with its number.
        module: torch's.

    Attributes:
        device: the device.
        memory: bytes of its own memory.
        pins: whether copies from pinned memory run beside the program; else batches are copied as they lie.
        registers: whether it can read a slot in place.
        side: the stream of copies; one for each device and process.
    """

    def __init__(self, device: Any, module: Any) -> None:
        self.device = device
        self._module = module
        properties = module.get_device_properties(device)
        self.memory = int(properties.total_memory)
        self.pins = not _shares_memory(device, properties)
        self.registers = self.pins and device.type == "cuda"
        self.side: DeviceStream = module.Stream(device)

    def current(self) -> DeviceStream:
        """Returns the stream of the program now: the consumer's."""
        return self._module.current_stream(self.device)  # type: ignore[no-any-return]

    def using(self, stream: DeviceStream) -> AbstractContextManager[Any]:
        """Makes a stream the current one, for the work of a block."""
        return self._module.stream(stream)  # type: ignore[no-any-return]

    def timed_event(self) -> Any:
        """Returns an event that knows its time: `elapsed_time` of two."""
        return self._module.Event(enable_timing=True)

    def is_capturing(self) -> bool:
        """Whether the current stream is captured by a CUDA graph: nothing else may be called then."""
        return bool(getattr(self._module, "is_current_stream_capturing", bool)())

    def holds(self, tensor: Any) -> bool:
        """Whether a tensor lies in the memory of this device."""
        return bool(tensor.device == self.device)

    def generators(self) -> list[Any]:
        """Returns torch's generators of random numbers on this device."""
        return list(getattr(self._module, "default_generators", ())[self.device.index :][:1])

    def empty_like(self, tensor: Any) -> Any:
        """Returns memory of the device for a tensor, for the current stream."""
        import torch

        return torch.empty_like(tensor, device=self.device)

    def copy(self, target: Any, source: Any, at_once: bool) -> None:
        """Copies a tensor to the device in the current stream: returns at once, or when it is done."""
        target.copy_(source, non_blocking=at_once)

    def decoded(self, images: Any) -> Any:
        """Returns images that are encoded on the host, decoded in the current stream and in memory of it."""
        return images.decoded_on(self.device)

    def pinned(self, tensor: Any) -> Any:
        """Returns the tensor in torch's pinned memory, which outlives the copies that read it."""
        return tensor.pin_memory()

    def register(self, address: int, size: int) -> str | None:
        """Registers memory of the host; returns the reason if it cannot be registered."""
        import torch

        with self._module.device(self.device):
            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            code = runtime.cudaHostRegister(address, size, _PORTABLE)
            if int(code) == 0:
                return None
            # The failure stays CUDA's last error, which the next kernel would report: this one does.
            with contextlib.suppress(RuntimeError):
                torch.ones(1, device=self.device).add_(1)
            return f"cudaHostRegister: {runtime.cudaGetErrorString(code)}"

    def unregister(self, address: int) -> None:
        """Ends the registration of memory at this address."""
        import torch

        with self._module.device(self.device):
            torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for all devices of the process."""

_USES_HOST_PAGE_TABLES = 100
"""CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES."""


def _shares_memory(device: Any, properties: Any) -> bool:
    """Whether a GPU reads the host's memory as its own (GB10, GH200): pinned memory would gain nothing."""
    if getattr(properties, "is_integrated", False) or getattr(properties, "is_integrated_gpu", False):  # CUDA's, XPU's
        return True
    if device.type != "cuda":
        return False
    try:
        driver, number, value = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_int()
        failed = driver.cuDeviceGet(ctypes.byref(number), device.index)
        failed = failed or driver.cuDeviceGetAttribute(ctypes.byref(value), _USES_HOST_PAGE_TABLES, number)
    except (OSError, AttributeError):
        return False
    return not failed and value.value == 1


class _InOrder:
    """The stream of a device whose copies are done when they return; its own event."""

    def record_event(self, event: Any = None) -> _InOrder:
        return self

    def wait_event(self, event: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class InOrderDevice(CopyDevice):
    """A device without streams of its own (`mps`): copies are done when they return, and nothing is pinned."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.memory = 1 << 62
        self.pins = self.registers = False
        self.side = _InOrder()

    def current(self) -> DeviceStream:
        return self.side

    def using(self, stream: DeviceStream) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def copy(self, target: Any, source: Any, at_once: bool) -> None:
        target.copy_(source)  # mps reads the source of a non_blocking copy later, and no event tells when

    def timed_event(self) -> Any:
        return None

    def generators(self) -> list[Any]:
        return []

    def is_capturing(self) -> bool:
        return False


@functools.cache
def accelerator_of(device: Any) -> CopyDevice:
    """Returns a device's accelerator.

    Args:
        device: a `torch.device` with its number.

    Raises:
        DeviceError: it is not there, or this process may not use it.
    """
    import torch

    module = getattr(torch, device.type, None)
    try:
        there = module is not None and module.is_available()
        if device.type == "mps" and there:
            return InOrderDevice(device)
        count = module.device_count() if there and module is not None else 0
        if module is not None and (device.index or 0) < count:
            return CopyDevice(device, module)
    except RuntimeError as error:
        forked = "forked subprocess" in str(error)
        raise errors.DeviceError(
            f"device={str(device)!r} cannot be used here: "
            + (
                "this process was forked from one that uses CUDA. Leave out device= here, or start it by spawn."
                if forked
                else f"{error}"
            )
        ) from error
    found = f"{count} such devices are there (numbers from 0)" if count else "torch finds no such device"
    raise errors.DeviceError(
        f"device={str(device)!r} is not there: {found}. Name one that `torch.{device.type}.device_count()` counts, see "
        "CUDA_VISIBLE_DEVICES and whether this torch is built for it, or leave device= out."
    )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=accelerator_of.cache_clear)  # a child may use none of these


def numbered(device: Any) -> Any:
    """Returns a `torch.device` with a number: that of the current device, if it has none."""
    import torch

    if device.index is not None or device.type in ("cpu", "mps"):
        return device
    module = getattr(torch, device.type, None)
    current = getattr(module, "current_device", None)
    if current is None or not module.is_available():  # type: ignore[union-attr]
        return torch.device(device.type, 0)
    return torch.device(device.type, current())
