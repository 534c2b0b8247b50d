"""Streams that know where they are: the base of all that is iterated over and resumed.

The state belongs to an iterator: it says where that iterator stands, in plain values, and grows with the number of
streams below it, not with the samples. A stream hands out the state of its latest iterator, and begins its next one
where a loaded state says. What is below is asked in the same way, whatever it is: see `resume`.
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

from stoker._stories import text_of
from stoker._worker_info import current
from stoker.datasets.base import IterableDataset, is_stream
from stoker.datasets.fingerprint import Fingerprint, same_again
from stoker.errors import SkipSample, StateFormatError, StateMismatchError, StreamLostError

T_co = TypeVar("T_co", covariant=True)

State = dict[str, Any]
"""Plain values only, as JSON has them: it must survive `json.dumps` unchanged."""


class _KeepsState(Protocol):
    """What torchdata calls stateful."""

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: Any) -> None: ...


class StreamIterator(Iterator[T_co]):
    """An iterator that knows where it stands. A subclass has `__next__` and `state_dict`."""

    @abstractmethod
    def state_dict(self) -> State:
        """Returns where this iterator stands: right after the last sample it gave, however far it has read ahead.

        Quick, no I/O. The answer is a snapshot: further iteration does not change it.
        """


class Stream(IterableDataset[T_co]):
    """An `IterableDataset` that can be resumed. A subclass has `_begin(state)`.

    Its state is that of its latest iterator, so one iteration at a time can be resumed. Each worker has its own copy.
    What it has to read again on resume must come out the same: random augmentation belongs above (outside), not below.
    """

    _in_step = False  # whether each of its samples is one of the stream below
    _latest: StreamIterator[T_co] | None = None
    _loaded: State | None = None

    @abstractmethod
    def _begin(self, state: State | None) -> StreamIterator[T_co]:
        """A new iterator, at its start or where a `state_dict()` of an earlier one says.

        Raises:
            StateError: it is no state of this stream's.
        """

    def __iter__(self) -> StreamIterator[T_co]:
        """Returns a new iterator; the first one after `load_state_dict` begins where that state says.

        Raises:
            StateError: the state that was loaded is no state of this stream's.
        """
        self._latest = self._begin(self._loaded)
        self._loaded = None  # not before: where it cannot be opened, the next one goes on there
        return self._latest

    def state_dict(self) -> State:
        """Where the latest iterator stands, in plain values (JSON); empty before the first."""
        if self._loaded is not None:
            return self._loaded
        return {} if self._latest is None else self._latest.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Makes the next `iter()` begin there; an empty state is the start."""
        self._loaded = state or None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_latest": None}


def resume(dataset: Any, state: State | None) -> StreamIterator[Any]:
    """Iterates over any dataset from where `state` says, and knows from then on where it stands.

    Args:
        dataset: map-style: walked by index, resumed in constant time. With `state_dict` and `load_state_dict`, on the
            dataset or on its iterator (as torchdata has them): asked for its own. Any other stream: its samples are
            counted, and on resume read again and thrown away.
        state: of an earlier iterator of this function over the same dataset; None or empty for the start.

    Raises:
        StateFormatError: it is a state of another kind of dataset.
        StateMismatchError: the dataset ends before the place that the state names.
    """
    state = state or None
    tell, current.reading.on_read_again = current.reading.on_read_again, None
    if isinstance(dataset, Stream):
        if state is None or not type(dataset).__iter__.__module__.startswith("stoker.datasets."):
            # An `__iter__` of the user's may be a generator around ours, which must not go to the place too.
            iterator = iter(dataset)
            if not isinstance(iterator, StreamIterator):
                return Counted(iterator, state, tell)
            if state is None:
                return iterator
        dataset.load_state_dict(state)
        current.reading.on_read_again = tell if dataset._in_step else None
        return iter(dataset)
    if not is_stream(dataset) and hasattr(dataset, "__getitem__"):
        return _ByIndex(dataset, count(state, "index"))
    if _keeps_state(dataset):
        return _OfDataset(dataset, state)
    if tell is not None and (seen := count(state, "seen") if state is not None and "seen" in state else 0):
        tell(seen)  # what it draws when it is opened is its first sample's
    return Counted(iter(dataset), state, tell)


def count(state: State | None, name: str) -> int:
    """The count of this name in a state; 0 at the start, where there is none.

    Raises:
        StateFormatError: there is no such count in it.
    """
    if state is None:
        return 0
    number = state.get(name)
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise _strange(state, f"a count {name!r}")
    return number


def part(state: State | None, name: str) -> State | None:
    """The state of this name in a state, of the dataset below; None at the start.

    Raises:
        StateFormatError: there is no such state in it.
    """
    if state is None:
        return None
    inner = state.get(name)
    if not isinstance(inner, dict):
        raise _strange(state, f"a state {name!r}")
    return inner


def parts(state: State | None, name: str, number: int) -> list[State | None]:
    """The states of this name in a state, of all datasets below; None each at the start.

    Raises:
        StateFormatError: there are no such states in it.
        StateMismatchError: there are more or fewer of them.
    """
    if state is None:
        return [None] * number
    inner = state.get(name)
    if not isinstance(inner, list) or not all(item is None or isinstance(item, dict) for item in inner):
        raise _strange(state, f"a list of states {name!r}")
    if len(inner) != number:
        raise StateMismatchError(f"the state is of {len(inner)} datasets together, and here are {number}")
    return inner


def same_settings(state: State | None, settings: State) -> None:
    """Looks whether a state is of a dataset with these settings, as far as it says so.

    Raises:
        StateMismatchError: it is of one with others: it would go on with another order than it began.
    """
    found = {name: state[name] for name in settings if state is not None and name in state}
    if any(found[name] != settings[name] for name in found):
        raise StateMismatchError(f"the state is of another order, {found}: here is {settings}")


def not_the_end(by: str) -> RuntimeError:
    """What to raise where code of the user's raised StopIteration."""
    return RuntimeError(
        f"{by} raised StopIteration, which would end the stream: does it call next() without a default?"
    )


class _OverAtAnError:
    """Knows of a generator that it is over when it raises. Its end, right behind an error, is no end of its samples:
    where that error was left out, the rest of them would be lost without a word.

    Attributes:
        error: that left a generator.
    """

    error: Exception | None = None
    _seen = 0

    def raised(self, error: Exception, seen: int) -> None:
        """It was raised in the place of sample `seen`."""
        codes = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
        self.error = error if any(code.co_flags & inspect.CO_GENERATOR for code in codes) else None
        self._seen = seen

    def at_end(self, seen: int) -> None:
        """Nothing comes behind sample `seen`.

        Raises:
            StreamLostError: that was an error, which was left out; once.
        """
        error, self.error = self.error, None
        if error is None or seen != self._seen:
            return
        if not (current.reading.leaves_out or issubclass(type(error), SkipSample)):
            return
        raise StreamLostError(
            f"a stream is a generator that raised {type(error).__name__} ({text_of(error)}). A generator is over when "
            "it raises, so on_error cannot leave the sample out: all those behind it would be lost. Catch the error "
            "inside the generator and `continue`, put the work that fails into MapDataset(stream, function), or make "
            "the stream an iterator: an object whose __next__ may raise, and goes on when it is asked again."
        ) from error


def _keeps_state(what: Any) -> TypeGuard[_KeepsState]:
    return hasattr(what, "state_dict") and hasattr(what, "load_state_dict")


def _equal(one: Any, other: Any) -> bool:
    """Whether two states say the same, also with tensors in them, and with the lists that JSON makes of tuples."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    try:
        if _shape(one) != _shape(other):
            return False  # element by element, an empty array is equal to one with a single element
        same: Any = one == other
        return bool(same.all() if hasattr(same, "all") else same)
    except Exception:  # tensors of other shapes, say
        return False


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape) if hasattr(value, "shape") else np.shape(value)


def _strange(state: State, expected: str) -> StateFormatError:
    keys = ", ".join(map(repr, state))
    return StateFormatError(f"a state with {expected} was expected, not one of {keys}: it is another dataset's")


def _out_of_reach(seen: int, found: int) -> StateMismatchError:
    return StateMismatchError(
        f"the state stands behind sample {seen}, but the dataset ends after {found}: it is another dataset's, or the "
        "dataset has lost samples since"
    )


class _ByIndex(StreamIterator[Any]):
    """A map-style dataset, walked from its first index to its last."""

    def __init__(self, dataset: Any, index: int) -> None:
        if index > len(dataset):
            raise _out_of_reach(index, len(dataset))
        self._dataset = dataset
        self._index = index

    def __next__(self) -> Any:
        if self._index >= len(self._dataset):
            raise StopIteration
        self._index += 1  # before it is fetched: what fails is not asked for again
        try:
            return self._dataset[self._index - 1]
        except StopIteration as error:
            raise not_the_end(f"sample {self._index - 1} of a {type(self._dataset).__name__}") from error

    def state_dict(self) -> State:
        return {"index": self._index}


class _OfDataset(StreamIterator[Any]):
    """A stream of somebody else's that keeps its own state. Its iterator may keep one as well, or be the dataset."""

    def __init__(self, dataset: Any, state: State | None) -> None:
        part(state, "own")
        self._dataset = dataset
        self._loaded = state
        self._iterator: Iterator[Any] | None = None
        self._over = _OverAtAnError()

    def __next__(self) -> Any:
        # Opened only now: an `__iter__` that is a generator looks at the loaded state at the first sample, and where
        # that is never asked for, the next iteration would begin there.
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
        self._dataset.load_state_dict(copy.deepcopy(own))  # what it does with it is not to change the user's
        iterator: Iterator[Any] = iter(self._dataset)
        if "iterator" in state and _keeps_state(iterator):
            iterator.load_state_dict(copy.deepcopy(part(state, "iterator")))
        return iterator

    def _resumed_itself(self, own: State) -> Iterator[Any]:
        """A dataset that is its own iterator. Its `__iter__` may take up what was loaded, or go back to the start: then
        it is loaded behind it, as torchdata does. Some can be loaded only there."""
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


class Counted(StreamIterator[Any]):
    """A stream of which nothing is known, or whose iterator keeps its own state. A sample that fails counts too.

    Args:
        iterator: at its start.
        state: of an earlier one of these.
        tell: called before a sample is read again, with how many there are from it to the next.
    """

    def __init__(self, iterator: Iterator[Any], state: State | None, tell: Callable[[int], None] | None = None) -> None:
        self._iterator = iterator
        self._over = _OverAtAnError()
        self._print = Fingerprint()
        self._look = 0
        self._seen = 0
        self._from: int | None = None  # the position of the sample for which it was asked first, as a loader counts
        if state is None:
            return
        if "from" in state:
            self._from = count(state, "from")
        if "iterator" in state and hasattr(iterator, "load_state_dict"):
            iterator.load_state_dict(copy.deepcopy(part(state, "iterator")))
            return
        seen = count(state, "seen")
        if seen and tell is None and "from" in state and current.reading.on_read_from is not None:
            current.reading.on_read_from(count(state, "from"))
        while self._seen < seen:
            if tell is not None:
                tell(seen - self._seen)
            try:
                next(self)
            except StopIteration:
                raise _out_of_reach(seen, self._seen) from None
            except Exception:  # so it was then
                pass
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
        if self._seen >= self._look:  # seldom
            self._look = self._print.take(sample, self._seen)
            self._asked()
        return sample

    def _asked(self) -> None:
        if self._from is None and (position := current.reading.position) is not None:
            self._from = position()

    def state_dict(self) -> State:
        if _keeps_state(self._iterator):
            return {"iterator": copy.deepcopy(self._iterator.state_dict())}
        state = {"seen": self._seen, **self._print.state_dict()}
        return state if self._from is None else {**state, "from": self._from}
