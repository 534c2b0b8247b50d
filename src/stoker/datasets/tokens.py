"""Windows of a tokenized text, for training language models, and where the windows begin."""

from __future__ import annotations

import mmap
import os
from typing import Any, Literal, NamedTuple

import numpy as np

from stoker.datasets.base import Dataset
from stoker.datasets.combining import absolute, positive
from stoker.datasets.gather import Array, Indices, inside
from stoker.errors import ArrayFileError, FileChangedError


class TokenWindows(Dataset[tuple[Any, ...]]):
    """Pairs `(x, y)` of windows over tokens: in sample i, x is `length` tokens from i * `stride` on, y one token later.

        TokenWindows("train.bin", 1024)                     # uint16 tokens, as nanoGPT writes them
        TokenWindows("train.npy", 1024, stride=512)
        TokenWindows(np.array(tokens), 1024)
        TokenWindows("train.bin", 1024, documents=begins, boundaries="within")

    Nothing is read ahead: each process maps the file itself, and a pickle holds its path instead of its contents. A
    batch is gathered in one call. Thread safe. `MegatronTokens` reads pairs of `.bin` and `.idx`.

    Documents are respected if it is known where they begin. With `boundaries="within"`, windows are cut in each
    document alone, and none crosses into the next: what is left at its end, and a document of `length` tokens or fewer,
    is in no window (`unused_tokens`). With `boundaries="positions"`, windows run on as without documents, and a sample
    is `(x, y, positions)`: the position of each token of x in its document, int64. It is 0 where a document begins, so
    `(positions == 0).cumsum(-1)` numbers the documents, as masks of attention need it.

    Args:
        tokens: a one-dimensional array of integers, or the path of a `.npy` or raw file.
        length: the number of tokens in x and in y.
        stride: the distance between the starts of two windows, in tokens. None means `length`: adjacent windows.
        dtype: the dtype of x and y.
        file_dtype: the dtype of the tokens in a raw file.
        documents: the places in `tokens` at which documents begin, ascending from 0; 8 bytes each.
        boundaries: "cross", "within" or "positions", see above.

    Raises:
        TypeError: the tokens, `length`, `stride` or `documents` are not integers.
        ValueError: `length` or `stride` is less than 1, the array has more than one dimension, or `documents` and
            `boundaries` do not fit each other or the tokens.
        ArrayFileError: a file is empty or truncated.
    """

    stoker_protocol = True
    tokens: Array

    def __init__(
        self,
        tokens: Any,
        length: int,
        *,
        stride: int | None = None,
        dtype: Any = np.int64,
        file_dtype: Any = np.uint16,
        documents: Any = None,
        boundaries: Boundaries = "cross",
    ) -> None:
        self.length = positive(length, "length")
        self.stride = self.length if stride is None else positive(stride, "stride")
        self.dtype = np.dtype(dtype)
        if isinstance(tokens, (str, os.PathLike)):
            tokens = _mapped(os.path.abspath(tokens), file_dtype)
        self.tokens = np.asanyarray(tokens)
        if not self.tokens.size:
            self.tokens = self.tokens.astype(self.dtype)  # NumPy gives an empty list a float dtype
        if self.tokens.dtype.kind not in "iu":
            raise TypeError(f"TokenWindows(tokens, ...): tokens are {self.tokens.dtype}, expected integers")
        if self.tokens.ndim != 1:
            raise ValueError(
                f"TokenWindows(tokens, ...): tokens have shape {self.tokens.shape}, expected one dimension"
            )
        self._narrows = not np.can_cast(self.tokens.dtype, self.dtype)
        self._documents = checked_documents(documents, boundaries, len(self.tokens))
        self.boundaries = boundaries
        self._cut()

    def __len__(self) -> int:
        """Returns the number of windows for which y is complete."""
        return int(self._starts.count)

    @property
    def unused_tokens(self) -> int:
        """The number of tokens that are in no x."""
        return len(self.tokens) - int(self._starts.covered)

    def __getitem__(self, index: int) -> tuple[Array, ...]:
        """Returns the window at `index`, which may be negative.

        Raises:
            IndexError: `index` is out of range.
            TypeError: `index` is not an integer.
            ValueError: a token does not fit `dtype`.
        """
        place = absolute(index, len(self))
        window = self._checked(self._windows[self._place(place)]).astype(self.dtype)
        pair = window[:-1].copy(), window[1:]  # a copy: masking x must not change y
        return pair if self.boundaries != "positions" else (*pair, self._positions(self._starts(place)))

    def _positions(self, first: int) -> Array:
        positions = np.empty((1, self.length), np.int64)
        assert self._documents is not None
        write_positions(positions, np.array([first]), self._documents)
        return positions.reshape(-1)

    def first_token(self, index: int) -> int:
        """Returns the place of the first token of the window at `index`."""
        return int(self._starts(absolute(index, len(self))))

    def gather_layout(self) -> Any:
        """Returns the layout of a sample: rows of `length` tokens."""
        rows = [np.empty((0, self.length), self.dtype) for _ in range(2)]
        return tuple(rows) if self.boundaries != "positions" else (*rows, np.empty((0, self.length), np.int64))

    def gather(self, indices: Indices, out: Any) -> None:
        """Writes the windows at `indices`."""
        if self.boundaries != "cross":
            indices = inside(indices, len(self))
        windows = self._checked(self._windows[self._place(indices)])
        out[0][...] = windows[:, :-1]
        out[1][...] = windows[:, 1:]
        if self.boundaries == "positions":
            assert self._documents is not None
            write_positions(out[2], self._starts(indices), self._documents)

    def _place(self, windows: Any) -> Any:
        """Returns the places of windows in `_windows`."""
        return self._starts(windows) if self.boundaries == "within" else windows

    def _checked(self, tokens: Array) -> Array:
        if self._narrows and len(wrong := tokens[tokens.astype(self.dtype) != tokens]):
            raise ValueError(f"token {wrong[0]} does not fit dtype={self.dtype}: pass a wider dtype")
        return tokens

    def _cut(self) -> None:
        """Makes a view of all windows, each one token longer, for y; with documents, of the windows at every token."""
        plain, is_within = np.asarray(self.tokens), self.boundaries == "within"
        self._starts = WindowStarts(len(plain), self.length, self.stride, self._documents if is_within else None)
        stride = 1 if is_within else self.stride
        count = max(0, (len(plain) - self.length - 1) // stride + 1)
        (step,) = plain.strides
        shape, strides = (count, self.length + 1), (step * stride, step)
        self._windows = np.lib.stride_tricks.as_strided(plain, shape, strides, writeable=False)

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name not in ("_windows", "_starts")}
        tokens = self.tokens
        # A slice of a memory map does not know its offset, and a temporary file has no name
        if (
            isinstance(tokens, np.memmap)
            and tokens.mode == "r"
            and tokens.filename
            and isinstance(tokens.base, mmap.mmap)
        ):
            state["tokens"] = _MappedFile(str(tokens.filename), tokens.dtype, tokens.offset, len(tokens))
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self.tokens, _MappedFile):
            self.tokens = self.tokens.open()
        self._cut()


def _mapped(path: str, file_dtype: Any) -> Array:
    """Maps a file of tokens."""
    try:
        return np.load(path, mmap_mode="r") if path.endswith(".npy") else np.memmap(path, file_dtype, "r")
    except (ValueError, EOFError) as error:
        raise ArrayFileError(
            f"{path} ({os.path.getsize(path):,} bytes) cannot be read as tokens: {error}. Is file_dtype="
            f"{np.dtype(file_dtype)} right, and was the file written and copied completely?"
        ) from error


class _MappedFile(NamedTuple):
    """A mapped file in its pickled form."""

    path: str
    dtype: np.dtype[Any]
    offset: int
    length: int

    def open(self) -> Array:
        if (size := os.path.getsize(self.path)) < (needed := self.offset + self.length * self.dtype.itemsize):
            raise FileChangedError(
                f"{self.path} was changed since the dataset was made: it has {size:,} bytes, and had at least "
                f"{needed:,}. Make the dataset anew, and give new data another name."
            )
        return np.memmap(self.path, self.dtype, "r", self.offset, (self.length,))


# Where windows over tokens begin: all along the text, or within each document alone.


Boundaries = Literal["cross", "positions", "within"]


class WindowStarts:
    """The first token of each window. Immutable and thread safe.

    Args:
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
