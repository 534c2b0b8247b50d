"""The fields of a batch, and the devices to which `device=` sends them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

from stoker import errors

INSIDE: object = object()
"""Returned for a value that is no leaf: its parts are looked at."""

Where = Callable[[str, Any], Any]
"""Returns the device of a tensor, or None, from its path and the tensor."""


def mapped(value: Any, leaf: Callable[[str, Any], Any], path: str = "", *, dataclasses_too: bool = False) -> Any:
    """Returns a batch in which each leaf is replaced. Containers keep their types.

    Args:
        value: the batch.
        leaf: returns the new value of a leaf, from its path (`image`, `0.boxes`) and its value; `INSIDE` for a value
            that may be a container. What is neither stays.
        path: of the value.
        dataclasses_too: whether the fields of dataclasses are parts of the batch.
    """
    new = leaf(path, value)
    if new is not INSIDE:
        return new

    def inside(key: Any, part: Any) -> Any:
        return mapped(part, leaf, f"{path}.{key}" if path else str(key), dataclasses_too=dataclasses_too)

    if isinstance(value, (str, bytes)):
        return value
    if isinstance(value, Mapping):
        parts = {key: inside(key, part) for key, part in value.items()}
        try:
            if isinstance(value, MutableMapping):
                clone = copy.copy(value)  # keeps attributes that the constructor does not take
                clone.update(parts)
                return clone
            return type(value)(parts)  # type: ignore[call-arg]
        except TypeError:
            return parts
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        items = [inside(names[place] if names else place, item) for place, item in enumerate(value)]
        return type(value)(*items) if names else type(value)(items)
    if isinstance(value, Sequence):
        items = [inside(place, item) for place, item in enumerate(value)]
        try:
            if isinstance(value, MutableSequence):
                changed = copy.copy(value)
                for place, item in enumerate(items):
                    changed[place] = item
                return changed
            return type(value)(items)  # type: ignore[call-arg]
        except TypeError:
            return items
    if dataclasses_too and dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed_fields: Any = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(changed_fields, field.name, inside(field.name, getattr(value, field.name)))
        return changed_fields
    return value


class FieldPlacement:
    """The validated `device=` of a loader: where each tensor of a batch goes.

    Args:
        device: a device; a mapping from fields to devices, of which the last key may be `...` for all others; or a
            function of (path, tensor) that returns a device or None.

    Raises:
        TypeError, ValueError: no device, or fields without a name.
    """

    def __init__(self, device: Any) -> None:
        self._function: Where | None = None
        self._fields: dict[str, Any] = {}
        self._others: Any = None
        if isinstance(device, Mapping):
            keys = list(device)
            for key in keys:
                if key is ... and key is not keys[-1]:
                    raise ValueError(
                        "device= has `...` before other fields: it stands for all that are not named, so put it last."
                    )
                if key is not ... and not isinstance(key, (str, int)):
                    raise TypeError(
                        "device= takes keys of the batch, places in it, dotted paths such as 'target.boxes', and `...` "
                        f"for all others, but got {key!r}"
                    )
            self._fields = {str(key): checked(where) for key, where in device.items() if key is not ...}
            self._others = checked(device.get(...))
        elif callable(device) and not hasattr(device, "index"):  # a torch.device can be called
            self._function = device
        else:
            self._others = checked(device)

    @property
    def fixed(self) -> list[Any]:
        """The devices that are named, except the CPU."""
        found = [where for where in (*self._fields.values(), self._others) if where is not None and where.type != "cpu"]
        return list(dict.fromkeys(found))

    @property
    def names_fields(self) -> bool:
        """Whether fields are named, so that a batch may lack one."""
        return bool(self._fields)

    @property
    def is_of_host(self) -> bool:
        """Whether all tensors stay where they are."""
        return self._function is None and not self.fixed

    def of(self, path: str, tensor: Any) -> Any:
        """Returns the device of a tensor, or None: it stays on the host."""
        if self._function is not None:
            where = self._function(path, tensor)
            try:
                where = checked(where)
            except (TypeError, ValueError) as error:
                error.add_note(f"returned by the function of device= for the field {path!r}")
                raise
        else:
            where = self._others
            field = path
            while self._fields:
                if field in self._fields:
                    where = self._fields[field]
                    break
                field, dot, _ = field.rpartition(".")
                if not dot:
                    break
        return None if where is None or where.type == "cpu" else where

    def check(self, paths: set[str]) -> None:
        """Refuses a batch that lacks a named field.

        Args:
            paths: of the batch's leaves and containers.

        Raises:
            DeviceError: it lacks one.
        """
        if lacking := [name for name in self._fields if name not in paths]:
            known = ", ".join(sorted(paths - {""})[:20]) or "none, it is one tensor"
            raise errors.DeviceError(
                f"device= names {', '.join(map(repr, lacking))}, which the batch lacks: its fields are {known}. Write "
                "one of these, or `...` for all that are not named."
            )


def checked(device: Any) -> Any:
    """Returns a `torch.device`, or None.

    Raises:
        TypeError, ValueError: no device, or one that holds no data.
    """
    import torch

    if device is None or isinstance(device, torch.device):
        found = device
    elif isinstance(device, bool) or not isinstance(device, (str, int)):
        raise TypeError(
            "device should be a device ('cuda', 'cuda:1', torch.device), a mapping from fields to devices, a function "
            f"of (path, tensor), or None, but got {device!r}"
        )
    else:
        try:
            found = torch.device(device)
        except RuntimeError as error:
            raise ValueError(
                f"device={device!r} is no device that this torch knows: {error}".partition("\n")[0]
            ) from None
    if found is not None and found.type == "meta":
        raise ValueError("device='meta' holds no data: name a device that does, or leave device= out.")
    return found
