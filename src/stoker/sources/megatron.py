"""Token windows over Megatron's pairs of files: tokens in `.bin`, and where sequences and documents lie in `.idx`."""

from __future__ import annotations

import os
import struct
from typing import Any, NamedTuple

import numpy as np

from stoker.datasets.combining import absolute
from stoker.datasets.gather import Array
from stoker.datasets.tokens import Boundaries, TokenWindows, checked_documents
from stoker.errors import ArrayFileError, FileChangedError

_HEADER = struct.Struct("<9sQBQQ")
"""Magic, version, code of the dtype, number of sequences, number of entries in the list of documents."""
_MAGIC = b"MMIDIDX\0\0"
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}


class MegatronTokens(TokenWindows):
    """Pairs `(x, y)` of windows over the tokens of a Megatron data set, y moved on by one token.

        MegatronTokens("data/corpus_text_document", 4096)
        MegatronTokens("data/corpus_text_document", 4096, boundaries="within")

    The files are `<prefix>.bin` and `<prefix>.idx`, as Megatron-LM, Megatron-core, NeMo and GPT-NeoX write them. The
    dtype of the tokens, the sequences and the documents follow from the index. Windows run over the tokens in the order
    of the file: they cross documents unless `boundaries` says otherwise (see `TokenWindows`); a shuffled loader takes
    windows in any order. Megatron itself shuffles documents before it cuts windows, so its samples are others.

    Both files are mapped by each process; a pickle holds the prefix. A batch is gathered in one call. Thread safe.
    Memory: nothing for each document with `boundaries="cross"`, otherwise 8 to 24 bytes.

    Args:
        prefix: the path without `.bin` and `.idx`; a path with one of these is taken too.
        length: the number of tokens in x and in y.
        stride: the distance between the starts of two windows, in tokens. None means `length`.
        dtype: the dtype of x and y.
        boundaries: "cross", "within" or "positions": the behaviour of windows at the end of a document.

    Raises:
        FileNotFoundError: one of the files does not exist.
        ArrayFileError: the index is none, or is truncated, or does not belong to the tokens.
        TypeError: the tokens, `length` or `stride` are not integers.
        ValueError: `length` or `stride` is less than 1, or `boundaries` is unknown.

    Attributes:
        prefix: of the files.
        documents: their number.
    """

    def __init__(
        self,
        prefix: str | os.PathLike[str],
        length: int,
        *,
        stride: int | None = None,
        dtype: Any = np.int64,
        boundaries: Boundaries = "cross",
    ) -> None:
        path = os.path.abspath(prefix)
        self.prefix = path[:-4] if path.endswith((".bin", ".idx")) else path
        self._versions = _versions(self.prefix)
        index = _read_index(self.prefix)
        self.documents = index.documents
        super().__init__(
            _tokens(self.prefix, index),
            length,
            stride=stride,
            dtype=dtype,
            documents=None if boundaries == "cross" else _begins(index),
            boundaries=boundaries,
        )

    def describe(self, index: int) -> str:
        """Returns the file, and the place of the first token, of the window at `index`."""
        number = absolute(index, len(self))
        return f"window {number}: from token {self.first_token(number):,} on in {self.prefix}.bin"

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "tokens": None, "_documents": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        prefix = state["prefix"]
        if _versions(prefix) != state["_versions"]:
            raise FileChangedError(
                f"{prefix}.bin or .idx was changed since the dataset was made. Make the dataset anew, and give new "
                "data another name."
            )
        index = _read_index(prefix)
        documents = None if state["boundaries"] == "cross" else _begins(index)
        documents = checked_documents(documents, state["boundaries"], index.tokens)
        super().__setstate__({**state, "tokens": _tokens(prefix, index), "_documents": documents})


def _versions(prefix: str) -> list[tuple[int, int]]:
    """Returns the sizes and times of modification of both files."""
    return [(status.st_size, status.st_mtime_ns) for status in map(os.stat, (f"{prefix}.bin", f"{prefix}.idx"))]


class _Index(NamedTuple):
    """The contents of a `.idx` file."""

    dtype: np.dtype[Any]
    pointers: Array  # the place of each sequence in `.bin`, in bytes
    firsts: Array  # the first sequence of each document, and a last entry: the number of sequences
    tokens: int

    @property
    def documents(self) -> int:
        return len(self.firsts) - 1


def _read_index(prefix: str) -> _Index:
    """Reads an index, and compares it with the size of the tokens' file.

    Raises:
        ArrayFileError: it is no index, or does not belong to the tokens.
    """
    path, tokens = f"{prefix}.idx", f"{prefix}.bin"
    bin_size, size = os.path.getsize(tokens), os.path.getsize(path)
    with open(path, "rb") as file:
        head = file.read(_HEADER.size)
    if len(head) < _HEADER.size or not head.startswith(_MAGIC):
        raise ArrayFileError(
            f"{path} ({size:,} bytes) is no index of Megatron: it does not begin with {_MAGIC!r}. Files of its old "
            "format (TNTIDX) have to be written anew."
        )
    _, version, code, sequences, documents = _HEADER.unpack(head)
    if version != 1 or code not in _DTYPES:
        raise ArrayFileError(f"{path} is of version {version} and dtype code {code}: version 1 and 1 to 8 are known")
    needed = _HEADER.size + 12 * sequences + 8 * documents
    if size < needed:
        raise ArrayFileError(
            f"{path} is truncated: {sequences:,} sequences and {documents:,} entries of documents need {needed:,} "
            f"bytes, and it has {size:,}. Was it written and copied completely?"
        )
    whole = np.memmap(path, np.uint8, "r")
    lengths = np.frombuffer(whole, "<i4", sequences, _HEADER.size)
    pointers = np.frombuffer(whole, "<i8", sequences, _HEADER.size + 4 * sequences)
    firsts = np.frombuffer(whole, "<i8", documents, _HEADER.size + 12 * sequences)
    dtype = np.dtype(_DTYPES[code])
    end = int(pointers[-1]) + int(lengths[-1]) * dtype.itemsize if sequences else 0
    if end != bin_size:
        raise ArrayFileError(
            f"{tokens} has {bin_size:,} bytes, but its index {path} describes {end:,} ({sequences:,} sequences of "
            f"{dtype}). One of them is truncated, or belongs to other data."
        )
    if not documents or firsts[0] != 0 or firsts[-1] != sequences:
        raise ArrayFileError(
            f"the documents of {path} do not run from sequence 0 to {sequences:,}: the index is damaged or was not "
            "finished"
        )
    return _Index(dtype, pointers, firsts, end // dtype.itemsize)


def _tokens(prefix: str, index: _Index) -> Array:
    return np.memmap(f"{prefix}.bin", index.dtype, "r") if index.tokens else np.empty(0, np.int64)


def _begins(index: _Index) -> Array:
    """Returns the place of each document's first token; an empty document begins where the next one does."""
    starts = index.firsts[:-1]
    is_inside = starts < len(index.pointers)
    begins = np.full(len(starts), index.tokens, np.int64)
    begins[is_inside] = index.pointers[starts[is_inside]] // index.dtype.itemsize
    return begins
