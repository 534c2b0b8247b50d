"""Several views of each sample, for test-time augmentation, and the average of a model's outputs for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np

from stoker.datasets.awaited import then, together
from stoker.datasets.base import Dataset, is_stream
from stoker.datasets.combining import OverStream, absolute, become_stream, checked, pass_epoch, positive
from stoker.datasets.read_again import ReadAgain
from stoker.datasets.stream import State, StreamIterator, count, not_the_end, part, resume, same_settings
from stoker.errors import StateMismatchError

T_co = TypeVar("T_co", covariant=True)

Transform = Callable[[Any, int], Any]


class ViewsDataset(Dataset[T_co]):
    """Views of samples, `n` of each: item i is view i % n of sample i // n; with `grouped`, the tuple of all views of
    sample i.

    View v of a sample is `transform(sample, v)`. Without a transform each view is the sample fetched once more, for
    datasets that augment at random: each view has its own position, and so its own random numbers.

    The views of a sample are adjacent, so a batch size that is a multiple of `n` keeps them together; ranks of a
    distributed loader keep them together only if grouped.

    Over a stream, the result is a stream, and `transform` is required: each sample is read once. Ungrouped, a stream
    that is resumed between two views reads their sample again, which must be the same: augment in `transform`. The
    source's state is taken before each sample, so it should be small.

    Args:
        dataset: by index, or a stream.
        n: the number of views, at least 1.
        transform: takes a sample and the number of the view, 0 to n - 1, and returns the view. It must not change the
            sample, which it receives for several views.
        grouped: whether an item is the tuple of all views of a sample.

    Raises:
        TypeError: `dataset` is not a dataset, `n` is not an integer, `transform` is not callable, or a subclass of this
            class was given a stream.
        ValueError: `n` is less than 1, or `dataset` is a stream and there is no transform.
    """

    stoker_protocol = True
    dataset: Any
    n: int
    transform: Transform | None
    grouped: bool

    def __init__(self, dataset: Any, n: int, transform: Transform | None = None, grouped: bool = False) -> None:
        if transform is not None and not callable(transform):
            raise TypeError(
                f"ViewsDataset: transform is a {type(transform).__name__}, expected transform(sample, view)"
            )
        self.dataset = checked(dataset, "ViewsDataset")
        self.n = positive(n, "n")
        self.transform = transform
        self.grouped = grouped
        if is_stream(dataset):
            if transform is None:
                raise ValueError(
                    "ViewsDataset over a stream needs a transform(sample, view): a stream gives each sample once, and "
                    f"without one all {self.n} views would be the same."
                )
            become_stream(self, _ViewsStream)

    def __len__(self) -> int:
        """Returns the number of views, or of samples if grouped.

        Raises:
            TypeError: the source has no length.
        """
        return len(self.dataset) * (1 if self.grouped else self.n)

    def __getitem__(self, index: Any) -> Any:
        """Returns a view, or the tuple of a sample's views; a negative index counts from the end.

        Raises:
            IndexError: `index` is out of range.
        """
        place = absolute(index, len(self))
        if not self.grouped:
            sample, transform = self.dataset[place // self.n], self.transform
            return sample if transform is None else then(sample, lambda each: transform(each, place % self.n))
        if self.transform is None:
            return together((self.dataset[place] for _ in range(self.n)), tuple)
        return then(self.dataset[place], partial(_all, n=self.n, transform=self.transform))

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch to the source if it offers `set_epoch`."""
        pass_epoch(self.dataset, epoch)


def average_views(outputs: Any, n: int) -> Any:
    """Returns the averages of a model's outputs over the `n` views of each sample.

    Args:
        outputs: shape (samples * n, …), in the order of an ungrouped `ViewsDataset`: an array, a tensor (it stays on
            its device and passes gradients) or a list of numbers. Of one batch, or of all batches concatenated. The
            average of integers is a float.
        n: the number of views of each sample.

    Returns:
        Shape (samples, …), of the same kind; a list becomes an array.

    Raises:
        ValueError: the number of outputs is not a multiple of `n`, or `n` is less than 1.
    """
    n = positive(n, "n")
    if not hasattr(outputs, "reshape"):
        outputs = np.asarray(outputs)
    if not len(outputs.shape) or len(outputs) % n:
        raise ValueError(
            f"outputs have shape {tuple(outputs.shape)}, which is not a multiple of {n} views. Join a batch that ends "
            "between the views of a sample with the next, or use a batch size that is a multiple."
        )
    views = outputs.reshape(len(outputs) // n, n, *outputs.shape[1:])
    if hasattr(views, "is_floating_point") and not (views.is_floating_point() or views.is_complex()):
        views = views.float()  # torch has no mean of integers
    return views.mean(1)


def _all(sample: Any, n: int, transform: Transform) -> tuple[Any, ...]:
    return tuple(transform(sample, view) for view in range(n))


class _ViewsStream(ViewsDataset[T_co], OverStream[T_co]):
    transform: Transform

    def _begin(self, state: State | None) -> StreamIterator[Any]:
        if self.grouped:
            return _Grouped(resume(self.dataset, state), self.n, self.transform)
        same_settings(state, {"n": self.n})
        view = count(state, "view")
        if view >= self.n:
            raise StateMismatchError(f"the state stands at view {view}, and this dataset has {self.n} of a sample")
        source = ReadAgain(resume(self.dataset, part(state, "source")), state)
        return _Views(source, self.n, self.transform, view)


class _Grouped(StreamIterator[Any]):
    def __init__(self, source: StreamIterator[Any], n: int, transform: Transform) -> None:
        self._source = source
        self._n = n
        self._transform = transform

    def __next__(self) -> Any:
        return _all(next(self._source), self._n, self._transform)

    def state_dict(self) -> State:
        return self._source.state_dict()


class _Views(StreamIterator[Any]):
    def __init__(self, source: ReadAgain, n: int, transform: Transform, view: int) -> None:
        self._source = source
        self._n = n
        self._transform = transform
        self._view = view  # the next one
        self._held: list[Any] = []  # the current sample
        self._before: tuple[int, State] = (0, {})  # the source's calls before that sample, and its state then

    def __next__(self) -> Any:
        if not self._held:
            self._before = self._source.calls, self._source.state_dict()
            self._source.forget(self._source.calls)
            self._held = [next(self._source)]
        view, sample = self._view, self._held[0]
        self._view = (view + 1) % self._n
        if self._view == 0:
            self._held = []
        try:
            return self._transform(sample, view)
        except StopIteration as error:
            raise not_the_end("transform of a ViewsDataset") from error

    def state_dict(self) -> State:
        calls, source = self._before if self._held else (self._source.calls, self._source.state_dict())
        return {"n": self._n, "view": self._view, "source": source, **self._source.state_since(calls)}
