"""`pin_memory=True`: batches in page-locked memory of torch's caching allocator, as with torch's loader."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from stoker import errors
from stoker.device import fields


def can_pin(pin_memory: bool, pin_memory_device: str, output: str = "torch") -> bool:
    """Returns whether batches are to be pinned; warns, as torch does, if pinning was requested but is impossible.

    Raises:
        MissingExtraError: tensors are to be pinned, and torch is not installed.
    """
    if not pin_memory:
        return False
    if output == "numpy":
        warnings.warn(
            "'pin_memory' pins tensors, and this loader gives NumPy arrays (output='numpy'): pin_memory has no effect.",
            errors.StokerWarning,
            stacklevel=6,
        )
        if "torch" not in sys.modules:
            return False
    try:
        import torch
    except ImportError as error:
        raise errors.MissingExtraError(
            "pin_memory=True needs torch (the extra stoker[torch]), or leave it out."
        ) from error

    if pin_memory_device:
        warnings.warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device, "
            f"ignore pin_memory_device='{pin_memory_device}'.",
            stacklevel=6,
        )
    if not torch.accelerator.is_available():
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used.",
            stacklevel=6,
        )
        return False
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and accelerator.type == "mps":
        warnings.warn(
            "'pin_memory' argument is set as true but not supported on MPS now, device pinned memory won't be used.",
            stacklevel=6,
        )
        return False
    return True


def pin(batch: Any) -> Any:
    """Returns the batch with its tensors in pinned memory; custom batch types use their own `pin_memory()`.

    Containers keep their types; other values without `pin_memory()` stay unchanged.
    """
    return fields.mapped(batch, lambda _, value: value.pin_memory() if hasattr(value, "pin_memory") else fields.INSIDE)
