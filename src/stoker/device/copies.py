"""Leaves of a batch on their way to a device, and the counts of what was copied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stoker.device.accelerator import CopyDevice


@dataclass
class CopyCounts:
    """Copies of a loader's batches to devices.

    Attributes:
        batches: that were copied.
        bytes: that were copied.
        staged: bytes of these that went through pinned memory, copied once more on the host.
        seconds: that the copies took, where events tell.
        stalled: seconds of these that the device waited for a copy.
        timed: bytes whose seconds are known.
        registered: slots that were registered.
        decoded: images that were encoded on the host.
        decoded_by_cpu: those of them that a GPU does not decode.
        why_staged: why no slot can be registered; empty while that is not known.
    """

    batches: int = 0
    bytes: int = 0
    staged: int = 0
    seconds: float = 0.0
    stalled: float = 0.0
    timed: int = 0
    registered: int = 0
    decoded: int = 0
    decoded_by_cpu: int = 0
    why_staged: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Returns the counts by name; nothing before the first copy."""
        return {name: value for name, value in vars(self).items() if name != "why_staged"} if self.batches else {}


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor of torch's, of any class."""
    import torch

    return isinstance(value, torch.Tensor)


def is_dense(tensor: Any) -> bool:
    """Whether it is dense memory, of torch's own class."""
    import torch

    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_nested)
    )


def moves_itself(value: Any) -> bool:
    """Whether it is of a user's or a library's class with a `to()` of its own."""
    kind = type(value)
    return callable(getattr(kind, "to", None)) and (not isinstance(value, Mapping) or hasattr(kind, "pin_memory"))


def decodes_itself(value: Any) -> bool:
    """Whether it holds encoded images, which a device decodes."""
    return callable(getattr(type(value), "decoded_on", None))


def moved_by_itself(value: Any, one: CopyDevice, kept: list[Any]) -> Any:
    """Returns what `value.to(device)` gives, on the consumer's stream: where it allocates is not known. The copy runs
    beside the program only from pinned memory, which torch keeps until it is read.
    """
    kept.append(value)
    with one.using(one.current()):
        pins = one.pins and hasattr(value, "pin_memory") and not is_tensor(value)
        if pins:
            value = value.pin_memory()
            kept.append(value)
        try:
            return value.to(one.device, non_blocking=pins)
        except TypeError:  # it takes the device alone
            return value.to(one.device)
