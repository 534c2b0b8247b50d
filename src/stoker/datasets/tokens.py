"""Windows of a tokenized text, for training language models."""

from __future__ import annotations

import mmap
import os
from typing import Any, NamedTuple

import numpy as np

from stoker.datasets.base import Dataset
from stoker.datasets.combining import absolute, positive
from stoker.datasets.document_windows import Boundaries, WindowStarts, checked_documents, write_positions
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
    """Maps a file of tokens.

    Raises:
        ArrayFileError: it is empty or truncated.
    """
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
