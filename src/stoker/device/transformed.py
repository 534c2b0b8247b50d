"""The transform of a whole batch on its device: behind the copy, on the copy's stream, ahead of the trainer.

What the transform allocates belongs to the stream that is current then. If that is the stream of copies, it would use
the memory again while the program reads it. So what is new is copied into memory of the consumer's stream, on the
stream of copies. What has no plain memory (sparse and nested tensors, tensors of other classes, objects that hold
tensors) is copied by its own means on the consumer's stream, which waits for the transform.

A batch on several devices, or on none, is transformed on the consumer's streams.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import gc
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from stoker.device import fields
from stoker.device.accelerator import CopyDevice, DeviceStream
from stoker.device.copies import is_dense, is_tensor, moves_itself

MOST_OBJECTS = 10_000
"""Objects of a value in which tensors are looked for. Texts and numbers do not count. A larger value is copied."""

_NO_HOLDERS = (str, bytes, int, float, complex, type(None), type, types.ModuleType, types.FunctionType, types.CodeType)

Called = Callable[[Any], Any]
"""Calls the user's transform with a batch."""


def on_side_stream(
    batch: Any, call: Called, one: CopyDevice, consumer: DeviceStream, moved: Sequence[Any], kept: list[Any]
) -> tuple[Any, list[Any]]:
    """Returns what the transform makes of a batch, and its tensors on the device. Returns at once.

    Args:
        batch: on the device.
        call: calls the transform.
        one: the device, whose stream of copies is the current one.
        consumer: the stream for which the memory of the result is allocated.
        moved: the tensors of the batch, in memory of that stream.
        kept: receives what has to live until the stream of copies has come to this place.
    """
    places = {id(tensor): tensor.untyped_storage().data_ptr() for tensor in moved}
    made = call(batch)
    kept.append(made)
    copies: dict[int, tuple[Any, Any]] = {}  # (target, source) by the `id` of the source
    on_device: list[Any] = []

    @functools.cache
    def wait() -> None:
        consumer.wait_event(one.side.record_event())

    def placed(_: str, value: Any) -> Any:
        if is_tensor(value):
            if not one.holds(value):
                return value
            if not is_dense(value):
                with one.using(consumer):
                    wait()
                    return cloned(value, consumer)
            if id(value) not in copies and places.get(id(value)) != value.untyped_storage().data_ptr():
                with one.using(consumer):
                    copies[id(value)] = one.empty_like(value), value
            found = copies[id(value)][0] if id(value) in copies else value
            on_device.append(found)
            return found
        if not moves_itself(value) and is_container(value):
            return fields.INSIDE
        if not holds_memory(value, one):
            return value
        with one.using(consumer):
            wait()
            try:
                return copy.deepcopy(value)
            except Exception as error:
                error.add_note(
                    f"raised by the copy of a {type(value).__name__} that batch_transform= returned, which may hold "
                    "tensors of the device: return the tensors in a tuple, a dictionary or a dataclass."
                )
                raise

    result = fields.mapped(made, placed, dataclasses_too=True)
    one.side.wait_event(consumer.record_event())  # the memory of the device may still be read by earlier work
    for target, source in copies.values():
        kept.append(target)
        one.copy(target, source, True)
    return result, on_device


def tensors_on(value: Any, devices: Sequence[CopyDevice]) -> Iterator[tuple[Any, CopyDevice]]:
    """Yields the tensors of a batch on these devices, with the device of each."""
    found: list[Any] = []

    def noted(_: str, part: Any) -> Any:
        if not is_tensor(part):
            return fields.INSIDE
        found.append(part)
        return part

    fields.mapped(value, noted, dataclasses_too=True)
    for tensor in found:
        for one in devices:
            if one.holds(tensor):
                yield tensor, one


@contextlib.contextmanager
def plain_modes(devices: Sequence[CopyDevice]) -> Iterator[None]:
    """Leaves the autocast of the program for devices, as `BatchTransform` does for the CPU."""
    import torch

    with contextlib.ExitStack() as modes:
        for kind in {one.device.type for one in devices}:
            if torch.is_autocast_enabled(kind):
                modes.enter_context(torch.autocast(kind, enabled=False))
        yield


def is_container(value: Any) -> bool:
    """Whether `fields.mapped` looks at the parts of a value."""
    if isinstance(value, (str, bytes, type)):
        return False
    return isinstance(value, (Mapping, Sequence)) or dataclasses.is_dataclass(value)


def cloned(value: Any, consumer: DeviceStream) -> Any:
    """Returns a copy of a tensor that is no dense memory, on the consumer's stream, which is the current one."""
    import torch

    result = value.clone()
    for name in value.__tensor_flatten__()[0] if hasattr(value, "__tensor_flatten__") else ():
        inner = getattr(value, name)  # a clone of a jagged tensor shares the offsets of the first
        if isinstance(inner, torch.Tensor) and inner.device.type != "cpu":
            inner.record_stream(cast("Any", consumer))
    return result


def holds_memory(value: Any, one: CopyDevice) -> bool:
    """Returns whether an object can reach a tensor of a device, or is too large to tell. Runs no code of the user's."""
    queue, seen = [] if isinstance(value, _NO_HOLDERS) else [value], {id(value)}
    for each in queue:  # which grows
        if is_tensor(each):
            if one.holds(each):
                return True
            continue
        for part in gc.get_referents(each):
            if id(part) not in seen and not isinstance(part, _NO_HOLDERS):
                seen.add(id(part))
                queue.append(part)
        if len(queue) > MOST_OBJECTS:
            return True
    return False
