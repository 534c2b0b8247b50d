"""A sampler of the user's, walked: what has to be remembered so that it can be walked again to the same place.

One that keeps a state of its own (`state_dict`, `load_state_dict`) is asked for it. Any other is begun anew, with the
generators that it draws from as they were, and walked without loading a sample: about 0.1 us an index for torch's and
ours. Its generators are those that it holds, which stay where the walk leaves them, and the global ones if it draws
from them in `iter()` or in its first step: these are put back, since they are everybody's. What it draws from them
later depends on who else does, so that cannot be repeated.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from stoker.errors import StateFormatError
from stoker.loader.generators import Stream, global_generators, global_streams, stream_of
from stoker.loader.held_generators import held_generators
from stoker.loader.state import START, Place

States = dict[str, Any]
"""States of generators, by name: that of the global ones, the number of others."""

T = TypeVar("T")


class Walk:
    """One pass over a sampler, begun with `iter()` when the loader's is.

    Args:
        sampler: any iterable.
        dataset: whose generators are not the sampler's, even if it can reach them.
        place: where the pass goes on.

    Attributes:
        place: the same, with what the sampler said of itself before the pass where that was not given.
    """

    def __init__(self, sampler: Any, dataset: Any, place: Place) -> None:
        given = place.seed is not None or place.mark is not None or place.generators is not None
        self.place = place if given else at_rest(sampler, dataset)
        self._sampler = sampler
        self._owner = _keeper(sampler)
        self._own = {} if self._owner is not None else _own_streams(sampler, dataset)
        self._again = _states(place.generators)
        self._stood: list[States] = []  # before iter(), and before the first step
        if place.mark is not None and self._owner is not None:
            self._owner.load_state_dict(copy.deepcopy(place.mark))
        self._iterator = iter(()) if place.over else self._drawing(lambda: iter(sampler))
        self._keeper = self._owner or _keeper(self._iterator)
        if place.mark is not None and self._owner is None and not place.over:
            if self._keeper is None:
                raise StateFormatError(
                    f"the state holds one of a sampler's, but {type(sampler).__name__} has no load_state_dict(). Make "
                    "the loader with the sampler that it had when the state was saved."
                )
            self._keeper.load_state_dict(copy.deepcopy(place.mark))
        self._from_start = place.batches == 0

    def __iter__(self) -> Iterator[Any]:
        """Gives what the sampler yields, from where its own state says, else from its start."""
        step = self._drawing(lambda: next(self._iterator, _END))
        if step is _END and self._owner is not None and self._from_start:
            # Its state was that behind the end of a pass: what was left of that one is nothing
            self._iterator = iter(self._sampler)
            step = next(self._iterator, _END)
        while step is not _END:  # by next() alone: there are iterators that a second iter() begins anew
            yield step
            step = next(self._iterator, _END)

    def _drawing(self, call: Callable[[], T]) -> T:
        """Makes a call that may draw: with the generators as they stood at this point of an earlier pass, if any."""
        then = self._again.pop(0) if self._again else {}
        common = global_streams(lasting=True)
        before = {name: stream.state() for name, stream in common.items()}
        _restore({**self._own, **common}, then)
        stood = {name: stream.state() for name, stream in self._own.items()}
        try:
            return call()
        finally:
            moved = [name for name in common if common[name].state() != then.get(name, before[name])]
            self._stood.append(stood | {name: then.get(name, before[name]) for name in moved})
            _restore(common, {name: before[name] for name in then if name in common})

    @property
    def generators(self) -> tuple[States, States | None] | None:
        """How the generators stood before `iter()`, and before the first step if it was taken (what differs)."""
        if self._keeper is not None or not self._stood:
            return None
        first, *second = self._stood
        own = {name for name, state in first.items() if name in self._own and second and second[0][name] == state}
        later = {name: state for name, state in second[0].items() if name not in own} if second else None
        return (_plain(first), _plain(later)) if first or later else None

    def mark(self) -> Any:
        """What the sampler says about where it stands; None where it keeps no state."""
        return None if self._keeper is None else copy.deepcopy(self._keeper.state_dict())


def at_rest(sampler: Any, dataset: Any) -> Place:
    """Where the next pass over a sampler begins, as far as it is known between two passes."""
    if (owner := _keeper(sampler)) is not None:
        return START._replace(mark=copy.deepcopy(owner.state_dict()))
    states = {name: stream.state() for name, stream in _own_streams(sampler, dataset).items()}
    return START._replace(generators=(_plain(states), None)) if states else START


_END = object()


def _keeper(sampler: Any) -> Any:
    """Who keeps the sampler's state: itself, or the sampler in it."""
    for candidate in (sampler, getattr(sampler, "sampler", None)):
        if callable(getattr(candidate, "state_dict", None)) and callable(getattr(candidate, "load_state_dict", None)):
            return candidate
    return None


def _own_streams(sampler: Any, dataset: Any) -> dict[str, Stream]:
    """The generators that a sampler holds, by number."""
    others = {id(generator) for generator in (*global_generators().values(), *held_generators(dataset))}
    held = [generator for generator in held_generators(sampler) if id(generator) not in others]
    streams = [stream for generator in held if (stream := stream_of(generator, salt=0, lasting=True)) is not None]
    return {str(number): stream for number, stream in enumerate(streams)}


def _states(plain: tuple[Any, Any] | None) -> list[States]:
    """The states of a place's generators, before `iter()` and before the first step."""
    try:
        return [dict(_bytes(states)) for states in plain or () if states is not None]
    except (TypeError, ValueError) as error:
        raise _unusable(error) from error


def _restore(streams: dict[str, Stream], states: States) -> None:
    for name, state in states.items():
        try:
            streams[name].restore(state)
        except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise _unusable(error) from error


def _unusable(error: Exception) -> StateFormatError:
    return StateFormatError(
        f"the state of a generator that the sampler drew from cannot be set: {error!r}. Give the sampler the "
        "generators that it had when the state was saved, or give it a state_dict() and load_state_dict() of its own."
    )


def _plain(value: Any) -> Any:
    """In plain values: some 7 kB for torch's generators and Python's, 200 bytes for NumPy's."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _bytes(value: Any) -> Any:
    """The inverse of `_plain`, with tuples for lists."""
    if isinstance(value, dict):
        if "base64" in value:
            return base64.b64decode(value["base64"])
        return {name: _bytes(item) for name, item in value.items()}
    return tuple(map(_bytes, value)) if isinstance(value, (list, tuple)) else value
