"""Windows of a tokenized text, for training language models."""

from __future__ import annotations

import mmap
import operator
import os
from typing import Any, NamedTuple

import numpy as np

from stoker.datasets.base import Dataset
from stoker.datasets.combining import positive
from stoker.datasets.gather import Array, Indices


class TokenWindows(Dataset[tuple[Any, ...]]):
    """Pairs `(x, y)` of windows over tokens: in sample i, x is `length` tokens from i * `stride` on, y one token later.

        TokenWindows("train.bin", 1024)                     # uint16 tokens, as they lie in the file
        TokenWindows("train.npy", 1024, stride=512)
        TokenWindows(np.array(tokens), 1024)

    Nothing is read ahead: each process maps the file itself, and a pickle holds its path instead of its contents. A
    batch is gathered in one call.

    Args:
        tokens: a one-dimensional array of integers, or the path of a `.npy` or raw file.
        length: the number of tokens in x and in y.
        stride: the distance between the starts of two windows, in tokens. None means `length`: adjacent windows.
        dtype: the dtype of x and y.
        file_dtype: the dtype of the tokens in a raw file.

    Raises:
        TypeError: the tokens, `length` or `stride` are not integers.
        ValueError: `length` or `stride` is less than 1, or the array has more than one dimension.
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
    ) -> None:
        self.length = positive(length, "length")
        self.stride = self.length if stride is None else positive(stride, "stride")
        self.dtype = np.dtype(dtype)
        if isinstance(tokens, (str, os.PathLike)):
            path = os.path.abspath(tokens)
            in_npy = path.endswith(".npy")
            tokens = np.load(path, mmap_mode="r") if in_npy else np.memmap(path, file_dtype, "r")
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
        self._windows = self._cut()

    def __len__(self) -> int:
        """Returns the number of windows for which y is complete."""
        return len(self._windows)

    def __getitem__(self, index: int) -> tuple[Array, Array]:
        """Returns the window at `index`, which may be negative.

        Raises:
            IndexError: `index` is out of range.
            TypeError: `index` is not an integer.
            ValueError: a token does not fit `dtype`.
        """
        window = self._checked(self._windows[operator.index(index)]).astype(self.dtype)
        return window[:-1].copy(), window[1:]  # a copy: masking x must not change y

    def gather_layout(self) -> Any:
        """Returns the layout of a sample: two rows of `length` tokens."""
        return np.empty((0, self.length), self.dtype), np.empty((0, self.length), self.dtype)

    def gather(self, indices: Indices, out: Any) -> None:
        """Writes the windows at `indices`."""
        windows = self._checked(self._windows[indices])
        x, y = out
        x[...] = windows[:, :-1]
        y[...] = windows[:, 1:]

    def _checked(self, tokens: Array) -> Array:
        if self._narrows and len(wrong := tokens[tokens.astype(self.dtype) != tokens]):
            raise ValueError(f"token {wrong[0]} does not fit dtype={self.dtype}: pass a wider dtype")
        return tokens

    def _cut(self) -> Array:
        """Returns all windows as a view, each one token longer, for y."""
        plain = np.asarray(self.tokens)
        count = max(0, (len(plain) - self.length - 1) // self.stride + 1)
        (step,) = plain.strides
        shape, strides = (count, self.length + 1), (step * self.stride, step)
        return np.lib.stride_tricks.as_strided(plain, shape, strides, writeable=False)

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name != "_windows"}
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
        self._windows = self._cut()


class _MappedFile(NamedTuple):
    """A mapped file in its pickled form."""

    path: str
    dtype: np.dtype[Any]
    offset: int
    length: int

    def open(self) -> Array:
        return np.memmap(self.path, self.dtype, "r", self.offset, (self.length,))
