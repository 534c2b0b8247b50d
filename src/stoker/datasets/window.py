"""Windows over a sequence of samples."""

from __future__ import annotations

from collections import deque
from typing import Any, TypeVar

from stoker.datasets.base import Dataset, is_stream
from stoker.datasets.combining import OverStream, absolute, become_stream, checked, pass_epoch, positive
from stoker.datasets.read_again import ReadAgain
from stoker.datasets.stream import State, StreamIterator, count, part, resume, same_settings

T_co = TypeVar("T_co", covariant=True)


class WindowDataset(Dataset[T_co]):
    """Windows of `size` samples, window k from sample k * stride on: steps of a time series, tokens of a text.

    Over an array, a memory map, a tensor (any object with a `shape`), a string or bytes, a window is a slice, hence a
    view if slices are views. Over any other dataset and over a stream, a window is the list of its samples.

    Over a stream, the result is a stream. If windows overlap, it holds `size` samples, and a state is the source's
    before the start of the next window: resuming reads the overlap again, with the same random numbers. The source's
    state is taken for each window, so it should be small. A failing sample removes all windows that contain it: its
    error is raised once, and the next window begins after it. Shards are windows over the source's shards; no window
    crosses the end of its shard.

    Args:
        dataset: a dataset by index, or a stream.
        size: the number of samples in a window, at least 1.
        stride: the distance between the starts of two windows, at least 1. None means `size`: adjacent windows.
        drop_last: whether samples at the end that do not fill a window are dropped; else they make a shorter one.

    Raises:
        TypeError: `dataset` is not a dataset, `size` or `stride` is not an integer, or a subclass of this class was
            given a stream.
        ValueError: `size` or `stride` is less than 1.
    """

    stoker_protocol = True
    dataset: Any
    size: int
    stride: int
    drop_last: bool

    def __init__(self, dataset: Any, size: int, stride: int | None = None, drop_last: bool = True) -> None:
        self.dataset = checked(dataset, "WindowDataset")
        self.size = positive(size, "size")
        self.stride = self.size if stride is None else positive(stride, "stride")
        self.drop_last = drop_last
        if is_stream(dataset):
            become_stream(self, _WindowStream)

    def __len__(self) -> int:
        """Returns the number of windows.

        Raises:
            TypeError: the source has no length.
        """
        n = len(self.dataset)
        if self.drop_last:
            return max(0, (n - self.size) // self.stride + 1)
        # One more if samples remain outside all windows and the next window reaches them.
        return min(max(0, -(-(n - self.size) // self.stride)) + 1, -(-n // self.stride))

    def __getitem__(self, index: Any) -> Any:
        """Returns a window; a negative index counts from the end.

        Raises:
            IndexError: `index` is out of range.
        """
        start = absolute(index, len(self)) * self.stride
        stop = min(start + self.size, len(self.dataset))
        if hasattr(self.dataset, "shape") or isinstance(self.dataset, (str, bytes, bytearray, memoryview)):
            return self.dataset[start:stop]
        if callable(getattr(self.dataset, "__getitems__", None)):
            return list(self.dataset.__getitems__(list(range(start, stop))))
        return [self.dataset[place] for place in range(start, stop)]

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch to the source if it offers `set_epoch`."""
        pass_epoch(self.dataset, epoch)


class _WindowStream(WindowDataset[T_co], OverStream[T_co]):
    def _begin(self, state: State | None) -> StreamIterator[Any]:
        return _Windows(self, state)


class _Windows(StreamIterator[Any]):
    def __init__(self, windows: WindowDataset[Any], state: State | None) -> None:
        self._size = windows.size
        self._stride = windows.stride
        self._drop_last = windows.drop_last
        self._settings: State = {"size": self._size, "stride": self._stride}
        same_settings(state, self._settings)
        self._skip = count(state, "skip")  # samples before the next window that are in no window
        self._old = count(state, "old")  # samples of the next window that are in the previous one too
        self._source = ReadAgain(resume(windows.dataset, part(state, "source")), state)
        self._held: list[Any] = []  # samples from the start of the next window on
        self._marks: deque[tuple[int, State]] = deque()  # the source's, the first at or before that start

    def __next__(self) -> Any:
        calls = self._source.calls
        if not self._marks or (self._marks[-1][0] < calls and len(self._held) < self._size and self._source.is_fresh):
            self._marks.append((calls, self._source.state_dict()))
        while self._skip:
            self._skip -= 1
            try:
                next(self._source)
            except BaseException:
                self._marks.clear()
                raise
        while len(self._held) < self._size:
            try:
                self._held.append(next(self._source))
            except StopIteration:
                if self._drop_last or len(self._held) <= self._old:
                    raise
                break
            except BaseException:  # Ctrl-C as well: that sample may or may not have been read
                self._begin_behind()
                raise
        window = self._held
        self._held = window[self._stride :]
        self._skip = max(0, self._stride - self._size)
        self._old = max(0, self._size - self._stride)
        while self._marks and (not self._held or (len(self._marks) > 1 and self._marks[1][0] <= self._begun)):
            self._marks.popleft()
        self._source.forget(self._marks[0][0] if self._marks else self._source.calls)
        return window

    @property
    def _begun(self) -> int:
        """Number of the source's calls before the held samples."""
        return self._source.calls - len(self._held)

    def _begin_behind(self) -> None:
        """Drops the held samples after a failure, so that no window spans the failed sample."""
        self._skip = self._stride - 1 - len(self._held) % self._stride
        self._old = max(0, self._size - self._stride)
        self._held = []
        self._marks.clear()

    def state_dict(self) -> State:
        calls, source = self._marks[0] if self._marks else (self._source.calls, self._source.state_dict())
        skip = self._skip + self._begun - calls
        return {**self._settings, "skip": skip, "old": self._old, "source": source, **self._source.state_since(calls)}
