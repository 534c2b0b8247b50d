"""Fingerprints of a stream's samples, which show whether a second pass gives the same samples.

A source with a random order, or one that gives each sample only once, would otherwise lose samples and repeat others
without a sign of it.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from itertools import islice
from typing import Any
from zlib import crc32

import numpy as np

from stoker._core.worker_info import current

_ALL = 64
"""Samples at the start of a stream that are all checked; after them one in `_EVERY` is."""
_EVERY = 32
_ITEMS = 16
"""Items of a container, or elements of an array, that are checked, spread evenly over it."""
_CHARACTERS = 1000
_VALUES = 64
_LONG = 1000
"""Bits of an integer that is not converted to decimal digits: Python refuses 4,300 of them."""


class Fingerprint:
    """Checksum of the samples that a stream has given, in their order.

    Cost: 0.3 to 5 us for each checked sample made of numbers, text, arrays and containers of them. Of any other object
    the class and the attributes are checked, never the address.

    Attributes:
        first: the checksum of the first sample alone, which reveals at once a source that gives each sample only once.
        now: the checksum of all samples.
    """

    def __init__(self) -> None:
        self.first = self.now = 0
        self._next = 1

    def take(self, sample: Any, number: int) -> int:
        """Adds sample `number`, counted from 1; returns the number of the next sample to check."""
        if number >= self._next:
            with suppress(Exception):  # an object of the user's that raises is left out, each time
                self.now = added(sample, self.now)
            if number == 1:
                self.first = self.now
            self._next = number + (1 if number < _ALL else _EVERY)
        return self._next

    def state_dict(self) -> dict[str, int]:
        """Returns both checksums as plain values."""
        return {"first": self.first, "print": self.now}


def same_again(now: dict[str, Any], then: dict[str, Any]) -> None:
    """Reports a stream that gives other samples when read again, to a reader that has asked for it.

    Called right after the first sample, so that a source that gives each sample only once loses no more than that, and
    again at the place where the state was taken.

    Args:
        now: the stream's state, with a count `seen`.
        then: the state up to which the stream is read.
    """
    name = "first" if now["seen"] <= 1 else "print"
    if current.reading.on_other_samples is not None and now[name] != then.get(name):
        current.reading.on_other_samples(now["seen"])


def added(sample: Any, mark: int, others: list[Any] | None = None) -> int:
    """Returns the checksum of a sample and of those before it.

    Args:
        mark: the checksum of the samples before it.
        others: receives the objects in the sample of which only the attributes are checked.
    """
    torch = sys.modules.get("torch")
    values = [sample]
    for value in islice(values, _VALUES):  # a bound on the cost, also of a sample that contains itself
        kind = type(value)
        if kind is str:
            mark = crc32(value[:_CHARACTERS].encode("utf-8", "surrogatepass"), mark)
        elif kind is int:
            mark = crc32(b"%x" % value if value.bit_length() > _LONG else b"%d" % value, mark)
        elif kind is float or kind is bool or value is None:
            mark = crc32(repr(value).encode(), mark)
        elif kind is bytes:
            mark = crc32(value[:_CHARACTERS], mark)
        elif kind is np.ndarray:
            mark = _array(value, mark)
        elif torch is not None and issubclass(kind, torch.Tensor):
            mark = _tensor(value, mark)
        elif issubclass(kind, (tuple, list)):
            base: Any = tuple if issubclass(kind, tuple) else list
            values += base.__getitem__(value, slice(None, None, 1 + len(value) // _ITEMS))
            mark = crc32(b"(%d" % len(value), mark)
        elif issubclass(kind, np.generic):
            mark = _array(np.asarray(value), mark)
        else:
            is_dict = issubclass(kind, dict)
            items = dict.items(value) if is_dict else getattr(value, "__dict__", {}).items()  # not those of a subclass
            if others is not None and not is_dict:
                others.append(value)
            for name, item in islice(items, _ITEMS):
                values += (name, item)
            mark = crc32(kind.__qualname__.encode(), mark)
    return mark


def _array(value: np.ndarray, mark: int) -> int:
    mark = crc32(repr(value.shape).encode(), mark)
    if value.dtype.hasobject:
        return mark
    some = value if value.size <= _ITEMS else value.flat[:: value.size // _ITEMS]
    return crc32(some.tobytes(), mark)


def _tensor(value: Any, mark: int) -> int:
    try:
        return _array(value.detach().numpy(), mark)
    except Exception:  # a dtype that NumPy lacks, or a tensor on a device
        return mark if value.is_nested else crc32(repr(tuple(value.shape)).encode(), mark)
