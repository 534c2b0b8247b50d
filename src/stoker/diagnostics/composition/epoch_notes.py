"""`EpochNotes`: which samples the batches of an epoch hold, noted in the training process.

Only the standard library is imported, as by the recorder. Indices are those that the sampler gave, copied at once:
nothing is drawn, asked for again, or changed. Of long epochs every second batch is noted, then every fourth, and so on,
so that the notes cover all of the epoch. A line holds batches:
`{"noted": epoch, "loader": 0, "every": 2, "numbers": [...], "starts": [...], "sizes": [...], "indices": ...}`, where
the starts are positions in the epoch, and `indices` (of all these batches), `labels` and `lengths` are base 64 of
machine numbers.
"""

from __future__ import annotations

import binascii
import contextlib
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from stoker._core.ours import is_ours
from stoker.diagnostics.composition.batch_padding import lengths_in
from stoker.diagnostics.composition.sample_column import SampleColumn

SAMPLES = 20_000
"""Samples of an epoch that are noted, about; at least half as many of a long epoch."""

PADDED = 64
"""Batches of an epoch in which lengths are looked for, about."""

WITHOUT = 4
"""Batches without lengths, after which no more are looked at."""

Columns = Callable[[], tuple[dict[str, Any], SampleColumn | None, SampleColumn | None]]
"""Returns facts about the dataset, and the label and the length of each of its samples."""


class EpochNotes:
    """The notes of an epoch under way. Used by the thread that iterates.

    Args:
        columns: called once, with the first notes that are written.

    Attributes:
        is_done: whether the epoch has ended, so that no notes follow.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns: Columns | None = columns
        self._key: dict[str, int] = {}
        self._labels: SampleColumn | None = None
        self._lengths: SampleColumn | None = None
        self.is_done = False
        self._is_off = self._is_over = False
        self._batches = self._samples = self._kept = 0
        self._every = 1
        self._numbers: list[int] = []
        self._starts: list[int] = []
        self._sizes: list[int] = []
        self._indices = array("q")
        self._received = self._with = 0
        self._looks_every = 1
        self._padded: list[list[Any]] = []

    def name(self, loader: int, epoch: int) -> None:
        """Names the epoch, whose first batches may have been noted before."""
        self._key = {"noted": epoch, "loader": loader}

    def asked(self, indices: Any) -> None:
        """Notes the indices of the next batch; anything but whole numbers ends the notes."""
        if self._is_off:
            return
        try:
            size = _size(indices)
            if not self._batches % self._every:
                self._note(_whole_numbers(indices), size)
        except (TypeError, ValueError, OverflowError):
            self._is_off = True
            return
        self._batches += 1
        self._samples += size

    def _note(self, indices: Sequence[int], size: int) -> None:
        self._indices.extend(indices)
        self._numbers.append(self._batches)
        self._starts.append(self._samples)
        self._sizes.append(size)
        self._kept += size
        if self._kept >= SAMPLES:
            self._every, self._kept = 2 * self._every, self._kept // 2

    def over(self) -> None:
        """Notes that the sampler has ended."""
        self._is_over = True

    def received(self, batch: Any) -> None:
        """Notes the lengths of the samples of a batch that the loop got, if the batch tells them."""
        number, self._received = self._received, self._received + 1
        if number % self._looks_every or (number >= WITHOUT and not self._with):
            return
        if (found := lengths_in(batch)) is not None:
            self._padded.append([number, *found])
            self._with += 1
            if self._with >= PADDED:
                self._looks_every, self._with = 2 * self._looks_every, self._with // 2

    def lines(self) -> list[dict[str, Any]]:
        """Returns the records of what was noted since the last call."""
        lines: list[dict[str, Any]] = []
        if self._is_off:
            was_done, self.is_done = self.is_done, True
            self._columns = self._labels = self._lengths = None
            return [] if was_done else [{**self._key, "unknown": True}]
        if self._numbers:
            if self._columns is not None:
                about, self._labels, self._lengths = self._columns()
                self._columns = None
                lines.append({**self._key, "about": about})
            lines.append(self._chunk())
        if self._padded:
            lines.append({**self._key, "looks_every": self._looks_every, "padded": self._padded})
            self._padded = []
        if self.is_done:
            self._labels = self._lengths = None
            lines.append({**self._key, "batches": self._batches, "samples": self._samples, "whole": self._is_over})
        return lines

    def _chunk(self) -> dict[str, Any]:
        chunk: dict[str, Any] = {
            **self._key,
            "every": self._every,
            "batches": self._batches,
            "samples": self._samples,
            "whole": self._is_over,
            "numbers": self._numbers,
            "starts": self._starts,
            "sizes": self._sizes,
            "indices": _text(self._indices),
        }
        indices = self._indices.tolist()
        for name, column, kind in (("labels", self._labels, "q"), ("lengths", self._lengths, "d")):
            if column is not None and (values := column.take(indices)) is not None:
                with contextlib.suppress(TypeError, OverflowError):  # other values than the first ones
                    chunk[name] = _text(array(kind, values))
        self._numbers, self._starts, self._sizes, self._indices = [], [], [], array("q")
        return chunk


def _text(numbers: array[Any]) -> str:
    return binascii.b2a_base64(numbers.tobytes(), newline=False).decode()


_LISTS = (list, tuple)


def _is_list(indices: Any) -> bool:
    kind = type(indices)
    return kind in _LISTS or is_ours(kind, "GivenBatch")


def _is_plain(value: Any) -> bool:
    """Returns whether a value is of a class of Python, NumPy or torch: its methods are not the user's."""
    return type(value).__module__.partition(".")[0] in ("builtins", "numpy", "torch")


def _size(indices: Any) -> int:
    """Returns the samples of a batch.

    Raises:
        TypeError: it is nothing that tells its size without code of the user's.
    """
    if _is_list(indices):
        return len(indices)
    if not _is_plain(indices) or indices is None:
        raise TypeError
    shape = getattr(indices, "shape", ())
    return int(shape[0]) if shape else 1


def _whole_numbers(indices: Any) -> Sequence[int]:
    """Returns the indices of a batch as an array of whole numbers.

    Raises:
        TypeError, OverflowError: they are others.
    """
    if not _is_list(indices):
        found = indices.tolist() if hasattr(indices, "tolist") else indices
        indices = found if isinstance(found, list) else [found]
    if indices and not _is_plain(indices[0]):
        raise TypeError
    return array("q", list(indices))
