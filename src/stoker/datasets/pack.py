"""Short sequences packed into rows of one length, with little padding."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from stoker.datasets.awaited import then, together
from stoker.datasets.base import Dataset, is_stream
from stoker.datasets.combining import OverStream, absolute, become_stream, checked, pass_epoch, positive
from stoker.datasets.read_again import ReadAgain
from stoker.datasets.stream import State, StreamIterator, count, part, resume
from stoker.errors import StateMismatchError

Array = np.ndarray[Any, np.dtype[np.int64]]
Row = dict[str, Array]


class PackDataset(Dataset[Row]):
    """Rows of `length` tokens, each packed with as many whole documents as fit.

    Of `window` consecutive documents, the longest is placed first, each into the fullest row with room for it (best
    fit, decreasing). The rows then come in the order of their first documents, and the documents of a row in their
    order. With a window of 1,024, padding is below 2 % for documents that are mostly shorter than half a row; one
    document for each row would leave 50 to 80 %. Empty documents are left out.

    A row is a dictionary of three int64 arrays of shape (length,):

    - `tokens`: the documents, then `padding`;
    - `positions`: 0, 1, 2, … from the start of each document; 0 in the padding;
    - `segment_ids`: 1 for the first document of the row, 2 for the next, …; 0 in the padding. Attention is meant only
      between places with equal ids.

    Over a stream, the result is a stream, which holds the documents of one window. Its state is the source's state
    before that window; resuming reads at most `window` documents again. Over a dataset by index, the result is a
    dataset by index, and `lengths` is required. Its plan is made at construction, in 2 s per million documents, and
    takes 8 bytes for each document and for each row (another 8 for each document if any is split). A row fetches its
    documents from the dataset.

    Args:
        dataset: documents: sequences of integers in one dimension (list, array or tensor).
        length: the length of a row, in tokens.
        lengths: for a dataset by index only: the number of tokens of each document, as integers. An array is not
            copied.
        window: the number of documents that are packed together.
        key: the key of the document in a sample: `sample[key]`. None: the sample is the document.
        padding: the token that fills a row.
        too_long: the treatment of a document longer than a row: "error", or "split" into pieces of `length`, each of
            which counts as a document.

    Attributes:
        padding_share: for a dataset by index only: the fraction of all tokens in rows that is padding.

    Raises:
        TypeError: `dataset` is not a dataset, or a number, length or token is not an integer.
        ValueError: a number is out of range; `lengths` is missing, does not have one length for each document, or is
            given for a stream; or a document is too long. (A stream raises the last while it is read.)
    """

    stoker_protocol = True

    def __init__(
        self,
        dataset: Any,
        length: int,
        lengths: Any = None,
        window: int = 1024,
        key: Any = None,
        padding: int = 0,
        too_long: Literal["error", "split"] = "error",
    ) -> None:
        self.dataset = checked(dataset, "PackDataset")
        self.length = positive(length, "length")
        self.lengths = lengths
        self.window = positive(window, "window")
        self.key = key
        self.padding = padding
        self.too_long = too_long
        if too_long not in ("error", "split"):
            raise ValueError(f"too_long is {too_long!r}, expected 'error' or 'split'")
        if is_stream(dataset):
            if lengths is not None:
                raise ValueError("lengths= is for a dataset by index: documents of a stream are measured as read")
            become_stream(self, _PackStream)
        else:
            self.lengths = _checked_lengths(lengths, len(dataset))
            self._plan()

    def _plan(self) -> None:
        """Computes which documents make up which row."""
        documents: list[Array] = []
        starts: list[Array] = []
        sizes: list[Array] = []
        for first in range(0, len(self.lengths), self.window):
            pieces = [
                (first + place, start, size)
                for place, total in enumerate(self.lengths[first : first + self.window].tolist())
                for start, size in self._cut(total, first + place)
            ]
            rows = best_fit([size for _, _, size in pieces], self.length)
            table = np.array(pieces, np.int64).reshape(-1, 3)[[place for row in rows for place in row]]
            documents.append(table[:, 0].copy())
            starts.append(table[:, 1].copy())
            sizes.append(np.array([len(row) for row in rows], np.int64))
        self._documents = np.concatenate([*documents, np.zeros(0, np.int64)])
        self._starts = np.concatenate(starts) if any(part.any() for part in starts) else None
        self._ends = np.cumsum(np.concatenate([*sizes, np.zeros(0, np.int64)]))
        self.padding_share = 1 - int(self.lengths.sum()) / max(1, len(self) * self.length)

    def __len__(self) -> int:
        """Returns the number of rows.

        Raises:
            TypeError: the documents are a stream.
        """
        return len(self._ends)

    def __getitem__(self, index: Any) -> Row:
        """Returns a row; a negative index counts from the end.

        Raises:
            IndexError: `index` is out of range.
            ValueError: the length of a document differs from `lengths`, or it has more than one dimension.
            TypeError: a document does not consist of integers.
        """
        row: Row = self._row(index, lambda documents: together(self.dataset[document] for document in documents))
        return row

    @property
    def __getitems__(self) -> Callable[[Sequence[Any]], list[Row]]:
        """Returns a function that makes several rows. Exists only if the source has `__getitems__`, which it calls once
        per row.

        Raises:
            AttributeError: the source has no `__getitems__`.
        """
        fetch = self.dataset.__getitems__
        return lambda indices: together(self._row(index, fetch) for index in indices)

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch to the source if it offers `set_epoch`."""
        pass_epoch(self.dataset, epoch)

    def _row(self, index: Any, fetch: Callable[[list[int]], Any]) -> Any:
        row = absolute(index, len(self))
        places = slice(int(self._ends[row - 1]) if row else 0, int(self._ends[row]))
        numbers = self._documents[places].tolist()
        starts = [0] * len(numbers) if self._starts is None else self._starts[places].tolist()
        return then(fetch(numbers), lambda samples: self._row_of(numbers, starts, samples))

    def _row_of(self, numbers: list[int], starts: list[int], samples: list[Any]) -> Row:
        pieces = []
        for number, start, sample in zip(numbers, starts, samples, strict=True):
            document = self._document(sample, number)
            if len(document) != self.lengths[number]:
                raise ValueError(
                    f"document {number} has {len(document)} tokens, but lengths says {self.lengths[number]}: were the "
                    "lengths measured on this dataset, with this tokenizer?"
                )
            pieces.append(document[start : start + self.length])
        return self._joined(pieces)

    def _document(self, sample: Any, number: int) -> Array:
        document = np.asarray(sample if self.key is None else sample[self.key])
        if document.ndim != 1:
            raise ValueError(f"document {number} has shape {document.shape}, expected one dimension")
        if document.dtype.kind not in "iu" and document.size:
            raise TypeError(f"document {number} is of {document.dtype}, expected integers")
        return document

    def _cut(self, total: int, number: int) -> Iterator[tuple[int, int]]:
        """Yields the start and size of each piece of a document."""
        if total > self.length and self.too_long == "error":
            raise ValueError(
                f"document {number} has {total} tokens, but a row has {self.length}: pass too_long='split' or a larger "
                "length, or remove such documents"
            )
        for start in range(0, total, self.length):
            yield start, min(self.length, total - start)

    def _joined(self, pieces: list[Array]) -> Row:
        tokens = np.full(self.length, self.padding, np.int64)
        positions, segment_ids = np.zeros((2, self.length), np.int64)
        end = 0
        for segment, piece in enumerate(pieces, 1):
            start, end = end, end + len(piece)
            tokens[start:end] = piece
            positions[start:end] = np.arange(len(piece))
            segment_ids[start:end] = segment
        return {"tokens": tokens, "positions": positions, "segment_ids": segment_ids}


class _PackStream(PackDataset, OverStream[Row]):
    def __len__(self) -> int:
        raise TypeError("the number of rows packed from a stream is known only at its end")

    def _begin(self, state: State | None) -> StreamIterator[Row]:
        return _Packed(self, state)


class _Packed(StreamIterator[Row]):
    """Iterator of rows. `_given` rows were given of the window that begins after `_before` documents; `_state` is the
    source's state at the start of that window.
    """

    def __init__(self, dataset: _PackStream, state: State | None) -> None:
        self._dataset = dataset
        self._order = {"length": dataset.length, "window": dataset.window, "too_long": dataset.too_long}
        if state is not None and (order := {name: state.get(name) for name in self._order}) != self._order:
            raise StateMismatchError(f"the state is of another order, {order}: here is {self._order}")
        self._before, self._given = count(state, "before"), count(state, "given")
        self._source = ReadAgain(resume(dataset.dataset, part(state, "source")), state)
        self._state, self._calls = self._source.state_dict(), 0
        self._read = 0
        self._ended = False
        self._pieces: list[Array] = []
        self._rows: list[list[int]] | None = None

    def __next__(self) -> Row:
        while True:
            if self._rows is None:
                self._read_window()
                self._rows = best_fit(list(map(len, self._pieces)), self._dataset.length)
            if self._given < len(self._rows):
                self._given += 1
                return self._dataset._joined([self._pieces[place] for place in self._rows[self._given - 1]])
            if self._ended:
                raise StopIteration
            self._before, self._given = self._before + self._read, 0
            self._state, self._calls = self._source.state_dict(), self._source.calls
            self._source.forget(self._calls)
            self._read, self._pieces, self._rows = 0, [], None

    def _read_window(self) -> None:
        while self._read < self._dataset.window:
            try:
                sample = next(self._source)
            except StopIteration:
                self._ended = True
                return
            self._read += 1  # a rejected document is skipped by the next call
            number = self._before + self._read - 1
            try:
                document = self._dataset._document(sample, number)
                cuts = list(self._dataset._cut(len(document), number))
            except Exception:
                if self._source.fails():
                    continue
                raise
            self._pieces += [document[start : start + size] for start, size in cuts]

    def state_dict(self) -> State:
        state = {**self._order, "source": self._state, "before": self._before, "given": self._given}
        return {**state, **self._source.state_since(self._calls)}


def best_fit(sizes: Sequence[int], room: int) -> list[list[int]]:
    """Distributes items of these sizes among rows of `room`, the largest first, each into the fullest row with room for
    it.

    Returns:
        The positions in `sizes` for each row, ascending; the rows in the order of their first item. Each size must be
        from 1 to `room`.
    """
    rows: list[list[int]] = []
    open_rows: list[tuple[int, int]] = []  # (room left, row), sorted
    for place in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        size = sizes[place]
        fullest = bisect_left(open_rows, (size, -1))
        if fullest < len(open_rows):
            left, row = open_rows.pop(fullest)
        else:
            left, row = room, len(rows)
            rows.append([])
        rows[row].append(place)
        if left > size:
            insort(open_rows, (left - size, row))
    return sorted(map(sorted, rows))


def _checked_lengths(lengths: Any, number: int) -> Array:
    if lengths is None:
        raise ValueError(
            "PackDataset over a dataset by index needs lengths=, the number of tokens of each document: "
            "lengths=[len(document) for document in dataset]. Store them with the data to avoid reading it each time"
        )
    array: Array = np.asarray(lengths)
    if array.shape != (number,):
        raise ValueError(f"lengths has shape {array.shape}, expected ({number},): one for each document")
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"lengths is of {array.dtype}, expected integers")
    if array.size and array.min() < 0:
        raise ValueError(f"lengths[{array.argmin()}] is {array.min()}, expected at least 0")
    return array
