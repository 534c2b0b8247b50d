"""Datasets from iterables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from stoker._core.worker_info import current
from stoker.datasets.stream import Counted, State, Stream, StreamIterator, not_the_end, resume

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


def from_iterable(factory: Callable[..., Iterable[T]], *args: Any, **kwargs: Any) -> Stream[T]:
    """Returns a stream of the values that `factory(*args, **kwargs)` yields, for instance of a generator function.

    The factory is called at the start of each iteration, in the worker that iterates. The type of its result determines
    how the stream is resumed. A list or a dataset by index is continued at the index, in constant time; a stream, or an
    iterator with `state_dict` and `load_state_dict`, at its own state. For any other iterable, the samples already
    given are made again and discarded.

    Args:
        factory: a function that returns an iterable, a new one at each call.
        *args: its positional arguments.
        **kwargs: its keyword arguments.

    Raises:
        TypeError: `factory` is not callable; for instance a generator, which could be read only once.
    """
    return _FromIterable(factory, args, kwargs)


class _FromIterable(Stream[T_co]):
    _in_step = True

    def __init__(self, factory: Callable[..., Iterable[T_co]], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        if not callable(factory):
            raise TypeError(
                f"from_iterable(factory) was given a {type(factory).__name__}, which cannot be called. Each epoch "
                "iterates anew, so pass the function that makes the iterable, and its arguments: from_iterable(f, x), "
                "not from_iterable(f(x))."
            )
        self.factory = factory
        self.args = args
        self.kwargs = kwargs

    def _begin(self, state: State | None) -> StreamIterator[T_co]:
        on_read_again, current.reading.on_read_again = current.reading.on_read_again, None
        if on_read_again is not None and state and state.get("seen"):
            on_read_again(state["seen"])  # random numbers drawn by the factory belong to the first sample
        try:
            iterable = self.factory(*self.args, **self.kwargs)
        except StopIteration as error:
            raise not_the_end("the factory of from_iterable()") from error
        if not hasattr(iterable, "__iter__") and not hasattr(iterable, "__getitem__"):
            name = getattr(self.factory, "__qualname__", type(self.factory).__name__)
            raise TypeError(
                f"from_iterable({name}): {name} returned {iterable!r:.100}, which is not iterable. Is a return or "
                "a yield missing?"
            )
        if isinstance(iterable, Sequence) or hasattr(iterable, "state_dict") or not hasattr(iterable, "__iter__"):
            return resume(iterable, state)
        # Never by index: indexing a dict, for instance, gives other items.
        return Counted(iter(iterable), state, on_read_again)
