"""`device_buffers=`: batches at fixed addresses, for CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stoker.device import fields
from stoker.device.accelerator import CopyDevice

SHAPES = 16
"""Shapes of batches that get buffers of their own."""


class DeviceBuffers:
    """Sets of device memory that a loader's batches use in turn. They live as long as the loader.

    A batch is copied into its set when it is delivered, on the consumer's stream: behind all that the program has
    queued for the batch before. So a set is valid up to the `next()` that uses it again, and copies ahead need no set.

    Args:
        number: of sets, for each shape of batches.
        tell: warns once.
    """

    def __init__(self, number: int, tell: Callable[[str], None]) -> None:
        self._number = number
        self._tell = tell
        self._sets: dict[tuple[Any, ...], list[list[Any]]] = {}  # the next set to use is the first

    def placed(self, batch: Any, moved: Sequence[tuple[Any, CopyDevice]]) -> Any:
        """Returns the batch in the set whose turn it is.

        Args:
            batch: on the device.
            moved: the tensors of the batch that are there, and the device of each.
        """
        key = tuple((tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor, _ in moved)
        if key not in self._sets and len(self._sets) >= SHAPES:
            self._tell(
                f"device_buffers={self._number} has no buffers for a batch of another shape: {SHAPES} shapes have "
                "theirs. This batch and others like it lie at addresses of their own. Pad batches to fewer lengths."
            )
            return batch
        sets = self._sets.setdefault(key, [])
        if len(sets) < self._number:
            sets.insert(0, [accelerator.empty_like(tensor) for tensor, accelerator in moved])
        mine = sets.pop(0)
        sets.append(mine)
        for buffer, (tensor, accelerator) in zip(mine, moved, strict=True):
            accelerator.copy(buffer, tensor, True)
        places = {id(tensor): buffer for buffer, (tensor, _) in zip(mine, moved, strict=True)}
        return fields.mapped(batch, lambda _, value: places.get(id(value), fields.INSIDE), dataclasses_too=True)
