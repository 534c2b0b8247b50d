"""Where windows over tokens begin: all along the text, or within each document alone."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from stoker.datasets.gather import Array, Indices

Boundaries = Literal["cross", "positions", "within"]


class WindowStarts:
    """The first token of each window. Immutable and thread safe.

    Args:
        tokens: their number.
        length: of x; a window has one token more, for y.
        stride: the distance between two windows.
        documents: where documents begin, ascending; windows are cut in each of them alone. None for one document.
    """

    def __init__(self, tokens: int, length: int, stride: int, documents: Array | None) -> None:
        self._stride = stride
        self._offsets: Array | None = None
        if documents is None:
            self.count = _count(tokens, length, stride)
            self.covered = _covered(self.count, length, stride)
            return
        counts = _count(np.diff(documents, append=tokens), length, stride)
        is_used = counts > 0
        self._ends = np.cumsum(counts[is_used])
        # Window w of a document begins at its offset + w * stride
        self._offsets = documents[is_used] - (self._ends - counts[is_used]) * stride
        self.count = int(self._ends[-1]) if len(self._ends) else 0
        self.covered = int(_covered(counts[is_used], length, stride).sum())

    def __call__(self, windows: Any) -> Any:
        """Returns the first tokens of windows, counted from 0: an array, or a number."""
        if self._offsets is None:
            return windows * self._stride
        return self._offsets[np.searchsorted(self._ends, windows, "right")] + windows * self._stride


def _count(tokens: Any, length: int, stride: int) -> Any:
    """Returns the number of windows in a text of that number of tokens, or in each of several."""
    count = (tokens - length - 1) // stride + 1
    return np.maximum(count, 0) if isinstance(count, np.ndarray) else max(0, count)


def _covered(count: Any, length: int, stride: int) -> Any:
    """Returns the number of tokens that this number of windows over one text has in x."""
    covered = (count - 1) * min(stride, length) + length
    return covered if isinstance(count, np.ndarray) else covered * (count > 0)


def checked_documents(documents: Any, boundaries: str, tokens: int) -> Array | None:
    """Returns where documents begin, as int64, without empty documents; None if windows take no notice of them.

    Raises:
        TypeError: the places are not integers.
        ValueError: `boundaries` is unknown or does not fit `documents`; the first place is not 0, the places do not
            ascend, or one is behind the tokens.
    """
    if boundaries not in ("cross", "positions", "within"):
        raise ValueError(f"boundaries is {boundaries!r}, expected 'cross', 'positions' or 'within'")
    if (documents is None) != (boundaries == "cross"):
        raise ValueError(
            "documents= was given, and boundaries='cross' takes no notice of them: choose 'positions' or 'within'"
            if documents is not None
            else f"boundaries is {boundaries!r}, and needs documents=: the places at which documents begin"
        )
    if documents is None:
        return None
    places = np.asarray(documents)
    if places.dtype.kind not in "iu" or places.ndim != 1:
        raise TypeError(f"documents are {places.dtype} of shape {places.shape}, expected a list of integers")
    places = places.astype(np.int64)
    if not len(places) or places[0] != 0 or places[-1] > tokens or (np.diff(places) < 0).any():
        raise ValueError(
            f"documents should ascend from 0 and end before the {tokens:,} tokens do, but got {len(places):,} places: "
            f"{str(places[:3].tolist())[1:-1]}, … {str(places[-2:].tolist())[1:-1]}"
        )
    return places[np.diff(places, append=tokens) > 0]


def write_positions(out: Array, firsts: Indices, documents: Array) -> None:
    """Writes the position of each token in its document, counted from 0.

    Args:
        out: int64, a row for each window.
        firsts: the first token of each window.
        documents: where documents begin, ascending from 0.
    """
    length = out.shape[1]
    steps = np.arange(length)
    before = np.searchsorted(documents, firsts, "right")
    behind = np.searchsorted(documents, firsts + length, "left")
    np.add(steps, (firsts - documents[before - 1])[:, None], out=out)
    counts = behind - before
    rows = np.repeat(np.arange(len(out)), counts)  # one for each document that begins in a window
    nth = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = documents[before[rows] + nth] - firsts[rows]
    for row, begin in zip(rows.tolist(), begins.tolist(), strict=True):
        out[row, begin:] = steps[: length - begin]
