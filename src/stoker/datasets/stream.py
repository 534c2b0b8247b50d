"""Streams that can report their position: the base of everything that is iterated over and resumed.

A state belongs to an iterator and says how far it has come, in plain values. Its size grows with the number of streams
below it, not with the samples. A stream returns the state of its latest iterator, and begins its next one at a loaded
state. All datasets below are used in the same way, see `resume`. The file is long because each way to read a stream has
to resume as the others do.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import traceback
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeGuard, TypeVar

import numpy as np

from stoker._core.exceptions import safe_str
from stoker._core.protocol import asked, definer, is_ours
from stoker._core.worker_info import current
from stoker.datasets.base import IterableDataset, is_stream
from stoker.datasets.declared import KnowsShare, declared
from stoker.datasets.fingerprint import Fingerprint, same_again
from stoker.errors import ShardingError, SkipSample, StateFormatError, StateMismatchError, StreamLostError

T_co = TypeVar("T_co", covariant=True)

State = dict[str, Any]
"""Plain values only, as in JSON: a state must survive `json.dumps` unchanged."""


class _KeepsState(Protocol):
    """A stateful object, as torchdata defines it."""

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: Any) -> None: ...


class StreamIterator(Iterator[T_co]):
    """An iterator that can report its position. A subclass defines `__next__` and `state_dict`."""

    @abstractmethod
    def state_dict(self) -> State:
        """Returns the position of this iterator: right after the last sample it gave, even if it has read ahead.

        Fast, no I/O. The result is a snapshot: further iteration does not change it.
        """


class Stream(KnowsShare, IterableDataset[T_co]):
    """An `IterableDataset` that can be resumed. A subclass defines `_begin(state)`.

    Its state is that of its latest iterator, so one iteration at a time can be resumed. Each worker has its own copy.
    Samples that are read again on resume must be the same: random augmentation belongs above (outside) this stream, not
    below it.
    """

    stoker_protocol = True
    _in_step = False  # whether each sample corresponds to one sample of the stream below
    _latest: StreamIterator[T_co] | None = None
    _loaded: State | None = None

    @abstractmethod
    def _begin(self, state: State | None) -> StreamIterator[T_co]:
        """Returns a new iterator, at the start or at the position of an earlier iterator's `state_dict()`.

        Raises:
            StateError: the state does not belong to this stream.
        """

    def __iter__(self) -> StreamIterator[T_co]:
        """Returns a new iterator; the first one after `load_state_dict` begins at that state.

        Raises:
            StateError: the loaded state does not belong to this stream.
        """
        self._latest = self._begin(self._loaded)
        self._loaded = None  # only now: if opening fails, the next iteration begins at this state
        return self._latest

    def state_dict(self) -> State:
        """Returns the position of the latest iterator, in plain values (JSON); empty before the first iteration."""
        if self._loaded is not None:
            return self._loaded
        return {} if self._latest is None else self._latest.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Makes the next `iter()` begin at `state`; an empty state is the start."""
        self._loaded = state or None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_latest": None}


def resume(dataset: Any, state: State | None) -> StreamIterator[Any]:
    """Returns an iterator over any dataset from `state` on, which can report its position.

    Args:
        dataset: a dataset by index is read in order and resumed in constant time. A stream with `state_dict` and
            `load_state_dict`, on itself or on its iterator (as in torchdata), is resumed by its own state. Of any other
            stream, samples are counted; on resume they are read again and discarded.
        state: of an earlier iterator from this function over the same dataset; None or empty for the start.

    Raises:
        StateFormatError: the state is of another kind of dataset.
        StateMismatchError: the dataset ends before the position in the state.
        ShardingError: the dataset declares that it divides itself among the workers, but the dataset that reads it
            declares the opposite.
    """
    declaration = declared(dataset)
    if declaration is False:
        with current.ignoring_questions():
            return _UndividedStream(_resumed(dataset, state))
    if declaration and current.reading.ignores_questions:
        raise ShardingError(
            f"{type(dataset).__name__} declares shards_itself = True, but the dataset that reads it declares "
            "shards_itself = False: samples would be lost. Let both declare the same."
        )
    if declaration:
        current.mark_asked()
    return _resumed(dataset, state)


def _resumed(dataset: Any, state: State | None) -> StreamIterator[Any]:
    state = state or None
    on_read_again, current.reading.on_read_again = current.reading.on_read_again, None
    if isinstance(dataset, Stream):
        if state is None or not is_ours(definer(type(dataset), "__iter__")):
            # A user's `__iter__` may be a generator around Stoker's, which must not skip to the position as well.
            iterator = iter(dataset)
            if not isinstance(iterator, StreamIterator):
                return Counted(iterator, state, on_read_again)
            if state is None:
                return iterator
        dataset.load_state_dict(state)
        current.reading.on_read_again = on_read_again if dataset._in_step else None
        return iter(dataset)
    if not is_stream(dataset) and hasattr(dataset, "__getitem__"):
        return _ByIndex(dataset, count(state, "index"))
    if _keeps_state(dataset):
        return _OfDataset(dataset, state)
    if on_read_again is not None and (seen := count(state, "seen") if state is not None and "seen" in state else 0):
        on_read_again(seen)  # random numbers drawn while opening belong to the first sample
    return Counted(iter(dataset), state, on_read_again)


def count(state: State | None, name: str) -> int:
    """Returns the count `name` in a state; 0 without a state.

    Raises:
        StateFormatError: the state has no such count.
    """
    if state is None:
        return 0
    number = state.get(name)
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise _strange(state, f"a count {name!r}")
    return number


def part(state: State | None, name: str) -> State | None:
    """Returns the inner state `name` in a state; None without a state.

    Raises:
        StateFormatError: the state has no such inner state.
    """
    if state is None:
        return None
    inner = state.get(name)
    if not isinstance(inner, dict):
        raise _strange(state, f"a state {name!r}")
    return inner


def parts(state: State | None, name: str, number: int) -> list[State | None]:
    """Returns the list of inner states `name` in a state, one for each dataset; a list of None without a state.

    Raises:
        StateFormatError: the state has no such list.
        StateMismatchError: the list has another length than `number`.
    """
    if state is None:
        return [None] * number
    inner = state.get(name)
    if not isinstance(inner, list) or not all(item is None or isinstance(item, dict) for item in inner):
        raise _strange(state, f"a list of states {name!r}")
    if len(inner) != number:
        raise StateMismatchError(f"the state is of {len(inner)} datasets, but there are {number} now")
    return inner


def same_settings(state: State | None, settings: State) -> None:
    """Checks that a state was taken with these settings, as far as it names them."""
    saved = {name: state[name] for name in settings if state is not None and name in state}
    if any(saved[name] != settings[name] for name in saved):
        raise StateMismatchError(f"the state is of another order, {saved}: here is {settings}")


def not_the_end(by: str) -> RuntimeError:
    """Returns the exception to raise when a user's function raised StopIteration."""
    return RuntimeError(
        f"{by} raised StopIteration, which would end the stream: does it call next() without a default?"
    )


class _OverAtAnError:
    """Detects that a generator ended because it raised.

    A generator that raises is exhausted. If the loader skips the error, the end that follows would silently lose the
    remaining samples.

    Attributes:
        error: the last exception that left a generator.
    """

    error: Exception | None = None
    _seen = 0

    def raised(self, error: Exception, seen: int) -> None:
        """Records that `error` was raised in place of sample `seen`."""
        codes = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
        self.error = error if any(code.co_flags & inspect.CO_GENERATOR for code in codes) else None
        self._seen = seen

    def at_end(self, seen: int) -> None:
        """Checks the end of a stream after sample `seen`.

        Raises:
            StreamLostError: sample `seen` was an error that the loader skipped. Raised once.
        """
        error, self.error = self.error, None
        if error is None or seen != self._seen:
            return
        if not (current.reading.leaves_out or issubclass(type(error), SkipSample)):
            return
        raise StreamLostError(
            f"a stream is a generator that raised {type(error).__name__} ({safe_str(error)}). A generator ends when "
            "it raises, so on_error cannot skip the sample: all later samples would be lost. Catch the error inside "
            "the generator and `continue`, move the failing work into MapDataset(stream, function), or make the stream "
            "an iterator: an object whose __next__ may raise and continues at the next call."
        ) from error


def _keeps_state(what: Any) -> TypeGuard[_KeepsState]:
    return callable(asked(what, "state_dict")) and callable(asked(what, "load_state_dict"))


def _equal(one: Any, other: Any) -> bool:
    """Returns whether two states are equal; they may hold tensors, and lists in place of tuples, as JSON makes them."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    try:
        if _shape(one) != _shape(other):
            return False  # elementwise, an empty array equals one with a single element
        same: Any = one == other
        return bool(same.all() if hasattr(same, "all") else same)
    except Exception:  # for example tensors of different shapes
        return False


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape) if hasattr(value, "shape") else np.shape(value)


def _strange(state: State, expected: str) -> StateFormatError:
    keys = ", ".join(map(repr, state))
    return StateFormatError(f"a state with {expected} was expected, found one of {keys}: it belongs to another dataset")


def _out_of_reach(seen: int, length: int) -> StateMismatchError:
    return StateMismatchError(
        f"the state stands behind sample {seen}, but the dataset ends after {length}: it belongs to another dataset, "
        "or the dataset has lost samples since"
    )


class _UndividedStream(StreamIterator[Any]):
    """A stream that declares that it does not divide itself among workers, so that its use of `get_worker_info()` does
    not count.
    """

    def __init__(self, stream: StreamIterator[Any]) -> None:
        self._stream = stream

    def __next__(self) -> Any:
        with current.ignoring_questions():
            return next(self._stream)

    def state_dict(self) -> State:
        return self._stream.state_dict()


class _ByIndex(StreamIterator[Any]):
    """A dataset by index, read from the first index to the last."""

    def __init__(self, dataset: Any, index: int) -> None:
        if index > len(dataset):
            raise _out_of_reach(index, len(dataset))
        self._dataset = dataset
        self._index = index

    def __next__(self) -> Any:
        if self._index >= len(self._dataset):
            raise StopIteration
        self._index += 1  # before the fetch: a failing sample is not fetched again
        try:
            return self._dataset[self._index - 1]
        except StopIteration as error:
            raise not_the_end(f"sample {self._index - 1} of a {type(self._dataset).__name__}") from error

    def state_dict(self) -> State:
        return {"index": self._index}


class _OfDataset(StreamIterator[Any]):
    """A stream of another library that keeps its own state. Its iterator may keep one as well, or be the dataset
    itself.
    """

    def __init__(self, dataset: Any, state: State | None) -> None:
        part(state, "own")
        current.reading.keeps_own = True
        self._dataset = dataset
        self._loaded = state
        self._iterator: Iterator[Any] | None = None
        self._over = _OverAtAnError()

    def __next__(self) -> Any:
        # Opened only now: an `__iter__` that is a generator reads the loaded state at the first sample. If that sample
        # were never requested, the next iteration would begin at the state.
        if self._iterator is None:
            self._iterator = iter(self._dataset) if self._loaded is None else self._resumed(self._loaded)
            if self._loaded is not None:
                current.resumed()
        try:
            sample = next(self._iterator)
        except StopIteration:
            self._over.at_end(0)
            raise
        except Exception as error:
            self._over.raised(error, 0)
            raise
        self._over.error = None
        return sample

    def _resumed(self, state: State) -> Iterator[Any]:
        own = state["own"]
        if hasattr(self._dataset, "__next__"):
            return self._resumed_itself(own)
        self._dataset.load_state_dict(copy.deepcopy(own))  # a copy: the dataset must not change the user's state
        iterator: Iterator[Any] = iter(self._dataset)
        if "iterator" in state and _keeps_state(iterator):
            iterator.load_state_dict(copy.deepcopy(part(state, "iterator")))
        return iterator

    def _resumed_itself(self, own: State) -> Iterator[Any]:
        """Returns the iterator of a dataset that is its own iterator, at a loaded state.

        Its `__iter__` may use the loaded state or return to the start; in the latter case the state is loaded again
        afterwards, as in torchdata. Some datasets accept a state only then.
        """
        with contextlib.suppress(Exception):
            self._dataset.load_state_dict(copy.deepcopy(own))
        iterator: Iterator[Any] = iter(self._dataset)
        if not _equal(self._dataset.state_dict(), own):
            self._dataset.load_state_dict(copy.deepcopy(own))
        return iterator

    def state_dict(self) -> State:
        if self._iterator is None:
            return self._loaded or {}
        state: State = {"own": copy.deepcopy(self._dataset.state_dict())}
        if self._iterator is not self._dataset and _keeps_state(self._iterator):
            state["iterator"] = copy.deepcopy(self._iterator.state_dict())
        return state


Taker = Callable[[Iterator[Any], list[Any], int], "bool | None"]
"""Appends at most so many values of an iterator to a list; returns whether it has ended, None if it reads nothing."""


class Counted(StreamIterator[Any]):
    """A stream without a known state, or whose iterator keeps its own. A failing sample counts too.

    Args:
        iterator: at its start.
        state: of an earlier `Counted`.
        on_read_again: called before a sample is read again, with the number of samples from it to the next new one.
    """

    def __init__(
        self, iterator: Iterator[Any], state: State | None, on_read_again: Callable[[int], None] | None = None
    ) -> None:
        self._iterator = iterator
        self._over = _OverAtAnError()
        self._print = Fingerprint()
        self._look = self._seen = 0
        self._from: int | None = None if state is None or "from" not in state else count(state, "from")
        current.reading.keeps_own |= _keeps_state(iterator)
        if state is None:
            return
        if "iterator" in state and (load := asked(iterator, "load_state_dict")) is not None:
            load(copy.deepcopy(part(state, "iterator")))
            return
        seen, read_from = count(state, "seen"), current.reading.on_read_from
        if seen and on_read_again is None and "from" in state and read_from is not None:
            read_from(count(state, "from"))
        fatal: Exception | None = None
        while self._seen < seen:
            if on_read_again is not None:
                on_read_again(seen - self._seen)
            try:
                next(self)
            except StopIteration:
                raise fatal or _out_of_reach(seen, self._seen) from None
            except Exception:  # the sample failed in the first pass as well
                fatal = self._over.error  # unless it is a generator, which ends so
            if self._seen == 1 or self._seen == seen:
                same_again(self.state_dict(), state)

    def __next__(self) -> Any:
        self._seen += 1
        try:
            sample = next(self._iterator)
        except StopIteration:
            self._seen -= 1
            self._over.at_end(self._seen)
            raise
        except Exception as error:
            self._over.raised(error, self._seen)
            self._asked()
            raise
        if self._seen >= self._look:  # rarely
            self._look = self._print.take(sample, self._seen)
            self._asked()
        return sample

    def several(self, take: Taker, samples: list[Any], most: int) -> bool | None:
        """Appends samples, read by `take`, as calls of `next` would return them: at most `most`, and fewer where the
        next one needs more.

        Returns:
            Whether the stream has ended; None if nothing was read, because `next` has to be called.
        """
        before = len(samples)
        if (most := min(most, self._look - self._seen)) < 1:
            return None
        try:
            ended = take(self._iterator, samples, most)
        except BaseException as error:
            self._seen += 1 + len(samples) - before
            if isinstance(error, Exception):
                self._over.raised(error, self._seen)
                self._asked()
            raise
        self._seen += len(samples) - before
        if ended:
            self._over.at_end(self._seen)
        elif self._seen >= self._look:
            self._look = self._print.take(samples[-1], self._seen)
            self._asked()
        return ended

    def _asked(self) -> None:
        if self._from is None and (position := current.reading.position) is not None:
            self._from = position()

    def state_dict(self) -> State:
        if _keeps_state(self._iterator):
            return {"iterator": copy.deepcopy(self._iterator.state_dict())}
        state = {"seen": self._seen, **self._print.state_dict()}
        return state if self._from is None else {**state, "from": self._from}
