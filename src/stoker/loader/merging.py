"""One state of those of all ranks, so that another number of ranks can go on."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from stoker.errors import StateMismatchError
from stoker.loader import state
from stoker.loader.resharding import together


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merges the states of all ranks, so that any number of ranks can continue: each loads what this returns.

    Needed for streams, where each rank has a share of the shards and knows only these (`stream.shard(num_shards,
    index)`); the shards are then shared out again. Every sample of the epoch comes once, before or after the merge. The
    streams have to name their shards, as interleaved ones and those of text files do. What is random in the
    rest of the epoch follows from the `seed=` of the loaders that load it; nothing is drawn again.

    With datasets that have indices, all ranks have the same state (`distributed=`), and one of them is returned.

    Args:
        states: what `state_dict()` returned on each rank, at the same step, in any order; also after JSON or pickle.
            One that is missing cannot be noticed, and its shards would be read from the start.

    Raises:
        ValueError: there are none.
        StateFormatError: one is damaged, not a state of Stoker's, or of a newer format.
        StateMismatchError: they are of different loaders or epochs, or the streams do not name their shards.
    """
    states = list(states)
    if not states:
        raise ValueError("merge_states needs the state of each rank, and got none")
    epochs, places, kinds = zip(*map(state.unpacked, states), strict=True)
    is_stream = kinds[0].get("order") == "stream"
    if is_stream:
        for kind in kinds:
            kind.pop("seed", None)  # ranks have their own, or would draw alike
    facts = [{"epoch": epoch, **kind} for epoch, kind in zip(epochs, kinds, strict=True)]
    _check_same(facts)
    if not is_stream:
        _check_same([place._asdict() for place in places])  # they have a seed as well, the epoch's
        return dict(states[0])
    workers = together(list(itertools.chain.from_iterable(place.workers or [None] for place in places)))
    batches = max(place.batches for place in places)
    return state.packed(epochs[0], state.Place(batches=batches, told=places[0].told, workers=workers), kinds[0])


def _check_same(facts: list[dict[str, Any]]) -> None:
    """Raises StateMismatchError if something is another on another rank."""
    for name in dict.fromkeys(itertools.chain.from_iterable(facts)):
        values = [fact.get(name) for fact in facts]
        if not all(_alike(value, values[0]) for value in values):
            told = ", ".join(f"{value!r:.60}" for value in values[:16])
            raise StateMismatchError(
                f"these are no states of one step of one run: {name} is {told}. Save all ranks' states at the same "
                "step, and before one of them begins the next epoch; give the loaders of all ranks the same seed=."
            )


def _alike(one: Any, other: Any) -> bool:
    """Whether two values are the same. A sampler's state may hold anything: arrays, tensors, and what is no number."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_alike(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, (Mapping, list, tuple)) or isinstance(other, (Mapping, list, tuple)):
        return False
    if hasattr(one, "dtype") or hasattr(other, "dtype"):
        arrays = [np.asarray(value) for value in (one, other)]
        return len({(array.dtype, array.shape, array.tobytes()) for array in arrays}) == 1
    return bool(one == other or (one != one and other != other))
