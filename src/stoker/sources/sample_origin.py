"""`sample_origin`: the file and row of the sample that a `transform=` has before it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple


class SampleOrigin(NamedTuple):
    """The place that a sample was read from.

    Attributes:
        file: its path or URL, as in the dataset's `files`.
        row: its row in the file, counted from 0.
    """

    file: str
    row: int


class _Transforming(threading.local):
    find: Callable[[], SampleOrigin] | None = None


_current = _Transforming()


def sample_origin() -> SampleOrigin | None:
    """Returns the file and the row of the sample that the `transform=` running in this thread was given.

    `ParquetDataset` and `ParquetStream` tell it. None outside of their transforms, and in threads that a transform has
    started.
    """
    return None if _current.find is None else _current.find()


def transformed(transform: Callable[[Any], Any], sample: Any, find: Callable[[], SampleOrigin]) -> Any:
    """Returns the result of a transform, which can ask for the origin of its sample.

    Args:
        transform: the user's function.
        sample: its argument.
        find: returns the origin. It is called only if the transform asks for it, or raises.

    Raises: what the transform raises, with a note that names the origin.
    """
    before, _current.find = _current.find, find
    try:
        return transform(sample)
    except Exception as error:
        origin = find()
        note = f"raised by the transform of row {origin.row} of {origin.file}"
        if note not in vars(error).get("__notes__", ()):  # a class may raise one instance many times
            error.add_note(note)
        raise
    finally:
        _current.find = before
