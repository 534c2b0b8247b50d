"""Streams that are their own iterator: their place is a fact about the dataset, also before an epoch's first sample.

Such a stream need not go back to its start at `iter()`. So a state that is taken before the first sample holds the
stream's own state, which is loaded before `iter()`. Any other stream begins with a new iterator, and needs nothing.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from typing import Any

from stoker.datasets._stream.declared import streams_in


def places(dataset: Any) -> list[Any] | None:
    """Returns the own states of all such streams in a dataset, in a fixed order; None if there are none.

    A stream that cannot say its state before its first `__iter__` has None: it makes its state there.
    """
    states = [_said_by(stream) for stream in _own_iterators(dataset)]
    return states if any(state is not None for state in states) else None


def put_back(dataset: Any, states: Sequence[Any]) -> None:
    """Loads states from `places` into the same streams of an equal dataset."""
    for stream, state in zip(_own_iterators(dataset), states, strict=False):
        if state is not None:
            with contextlib.suppress(AttributeError):  # what `__iter__` makes is not there yet
                stream.load_state_dict(copy.deepcopy(state))


def _own_iterators(dataset: Any) -> list[Any]:
    names = ("__next__", "state_dict", "load_state_dict")
    found = streams_in(dataset, declared_too=True)
    return [stream for stream in found if all(callable(getattr(type(stream), name, None)) for name in names)]


def _said_by(stream: Any) -> Any:
    try:
        return copy.deepcopy(stream.state_dict())
    except Exception:
        return None
