"""`merge_states`: merges the states of all ranks, so that another number of ranks can continue."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from stoker._state import schema
from stoker._state.resharding import together
from stoker.errors import StateMismatchError


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns one state from the states of all ranks; any number of ranks can load it and continue.

    Needed for streams of which each rank reads a share of the shards and knows only its share
    (`stream.shard(num_shards, index)`); the shards are then divided again. Every sample of the epoch is delivered once,
    before or after the merge. The streams have to name their shards, as interleaved streams and streams of text files
    do. Randomness in the rest of the epoch follows from the `seed=` of the loaders that load the state; nothing is
    drawn again.

    With datasets that have indices, all ranks have the same state (`distributed=`), and one of them is returned.

    Args:
        states: the results of `state_dict()` on all ranks, at the same step, in any order; also after JSON or pickle.
            A missing state cannot be detected, and its shards would be read from the start.

    Raises:
        ValueError: there are no states.
        StateFormatError: a state is damaged, not a state of Stoker's, or of a newer format.
        StateMismatchError: the states are of different loaders or epochs, or the streams do not name their shards.
    """
    states = list(states)
    if not states:
        raise ValueError("merge_states needs the state of each rank, and got none")
    epochs, places, kinds = zip(*map(schema.unpacked, states), strict=True)
    is_stream = kinds[0].get("order") == "stream"
    if is_stream:
        for kind in kinds:
            kind.pop("seed", None)  # each rank has its own seed, or ranks would draw the same numbers
    facts = [{"epoch": epoch, **kind} for epoch, kind in zip(epochs, kinds, strict=True)]
    _check_same(facts)
    if not is_stream:
        drawn = tuple(sorted({name for place in places for name in place.drawn}))  # not all ranks have seen all samples
        places = tuple(place._replace(drawn=drawn) for place in places)
        _check_same([place._asdict() for place in places])  # including the epoch's seed
        return schema.packed(epochs[0], places[0], kinds[0])
    workers = together(list(itertools.chain.from_iterable(place.workers or [None] for place in places)))
    batches = max(place.batches for place in places)
    return schema.packed(epochs[0], schema.Place(batches=batches, told=places[0].told, workers=workers), kinds[0])


def _check_same(facts: list[dict[str, Any]]) -> None:
    """Raises StateMismatchError if a fact differs between ranks."""
    for name in dict.fromkeys(itertools.chain.from_iterable(facts)):
        values = [fact.get(name) for fact in facts]
        if not all(_alike(value, values[0]) for value in values):
            told = ", ".join(f"{value!r:.60}" for value in values[:16])
            raise StateMismatchError(
                f"these states are not of one step of one run: {name} is {told}. Save all ranks' states at the same "
                "step, and before one of them begins the next epoch; give the loaders of all ranks the same seed=."
            )


def _alike(one: Any, other: Any) -> bool:
    """Returns whether two values are equal. A sampler's state may hold any values: arrays, tensors, NaN."""
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
