"""The states of several ranks: the one that a rank loads, and `merge_states` for another number of ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from stoker.errors import StateMismatchError
from stoker.loader._state import schema
from stoker.loader._state.resharding import together

_Read = tuple[int, schema.Place, dict[str, Any]]


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns one state from the states of all ranks; any number of ranks can load it and continue.

    Needed for streams of which each rank reads a share of the shards and knows only its share
    (`stream.shard(num_shards, index)`); the shards are then divided again. Every sample of the epoch is delivered once,
    before or after the merge. The streams have to name their shards, as interleaved streams and streams of text files
    do. Randomness in the rest of the epoch follows from the `seed=` of the loaders that load the state; nothing is
    drawn again.

    With datasets that have indices, all ranks have the same state (`distributed=`), and one of them is returned. A rank
    that stands at the start of the next epoch has ended the one in which the others are.

    Args:
        states: the results of `state_dict()` on all ranks, at the same step, in any order; also after JSON or pickle.
            Of ranks that read the same part of `shard`, one is enough. A missing state is detected if `shard` has
            divided the stream, or if `torch.distributed` was initialised.

    Raises:
        ValueError: there are no states.
        StateFormatError: a state is damaged, not a state of Stoker's, or of a newer format.
        StateMismatchError: the states are of different loaders or epochs, one is missing, or the streams do not name
            their shards.
    """
    whole, named = _of_each_rank(states)
    if not whole:
        raise ValueError("merge_states needs the state of each rank, and got none")
    read = [schema.unpacked(state) for state in whole]
    is_stream = read[0][2].get("order") == "stream"
    if is_stream and all(kind.get("num_shards") is not None for _, _, kind in read):
        read = _one_of_each_part(read)
    else:
        _check_complete("ranks", named)
    epochs, places, kinds = map(list, zip(*read, strict=True))
    if is_stream:
        _check_complete("num_shards", [(kind.pop("index", None), kind.pop("num_shards", None)) for kind in kinds])
        for kind in kinds:
            kind.pop("seed", None)  # each rank has its own seed, or ranks would draw the same numbers
    first = min(epochs)
    ended = [epoch == first + 1 and not place.batches for epoch, place in zip(epochs, places, strict=True)]
    epochs = [first if has_ended else epoch for epoch, has_ended in zip(epochs, ended, strict=True)]
    facts = [{"epoch": epoch, **kind} for epoch, kind in zip(epochs, kinds, strict=True)]
    _check_same(facts)
    if not is_stream:
        drawn = tuple(sorted({name for place in places for name in place.drawn}))  # not all ranks have seen all samples
        left = [place._replace(drawn=drawn) for place, gone in zip(places, ended, strict=True) if not gone]
        _check_same([place._asdict() for place in left])  # including the epoch's seed
        if any(ended):
            _check_last_step(left[0], kinds[0])
        return schema.packed(first, left[0], kinds[0])
    streams: list[Any] = []
    for place, has_ended in zip(places, ended, strict=True):
        streams += (place.past if has_ended else None if place.through else place.workers) or [None]
        if has_ended and not place.past:
            raise StateMismatchError(
                f"one rank has ended epoch {first}, in which others are, and its state does not name the shards that "
                "it has read. Save all ranks' states before one of them begins the next epoch, or let the state of "
                "the stream name its shards (see the guide on resuming)."
            )
    batches = max(place.batches for place in places)
    place = schema.Place(batches=batches, epochs_ahead=places[0].epochs_ahead, workers=together(streams))
    return schema.packed(first, place, kinds[0])


def of_rank(state: Mapping[str, Any], here: Callable[[], schema.Rank], strict: bool) -> tuple[Mapping[str, Any], bool]:
    """Returns the state that a rank loads, of a state that may hold those of several ranks, and whether it is known to
    be the rank's own.

    Args:
        state: given to `load_state_dict`.
        here: returns the rank; called only if the state is not that of all ranks.
        strict: whether a stream's state of another rank is refused.

    Raises:
        StateMismatchError: the state is of another rank, or of another number of ranks and cannot be merged.
    """
    parts = schema.states_by_rank(state)
    if not parts:
        return state, False
    if (rank := here()) in parts:
        return parts[rank], True
    if len(parts) > 1:
        return merge_states([state]), False
    ((theirs, part),) = parts.items()
    if strict and schema.unpacked(part)[2].get("order") == "stream":
        raise StateMismatchError(
            f"the state is that of rank {theirs[0]} of {theirs[1]}, and this is rank {rank[0]} of {rank[1]}: the state "
            "of a stream describes the part that one rank reads. Save the states of all ranks, and let each load its "
            "own, or with another number of ranks the one that merge_states makes of them. If all ranks read the same "
            "stream, pass strict=False."
        )
    return part, False


def _of_each_rank(states: Iterable[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[schema.Rank]]:
    """Returns the states of single ranks, each once, of states that may hold several, and the ranks if all are
    named."""
    whole: list[Mapping[str, Any]] = []
    named: dict[schema.Rank, Mapping[str, Any]] = {}
    for state in states:
        parts = schema.states_by_rank(state)
        named |= parts
        whole += [] if parts else [state]
    return [*whole, *named.values()], [] if whole else list(named)


def _one_of_each_part(read: list[_Read]) -> list[_Read]:
    """Returns one state of each part of a stream. Ranks of one tensor-parallel group read the same part.

    Raises:
        StateMismatchError: two ranks are at different places of the same part.
    """
    parts: dict[Any, _Read] = {}
    for epoch, place, kind in read:
        part = kind.get("index"), kind["num_shards"]
        first, at, _ = parts.setdefault(part, (epoch, place, kind))
        if (first, at.batches) != (epoch, place.batches) or not _alike(at.workers, place.workers):
            raise StateMismatchError(
                f"these states are not of one step of one run: two ranks read part {part[0]} of {part[1]}, and are at "
                f"batch {at.batches} of epoch {first} and at batch {place.batches} of epoch {epoch}. Give each rank a "
                "part of its own (the index of shard), or save the states of ranks that read the same part at the "
                "same step."
            )
    return list(parts.values())


def _check_complete(of: str, numbers: list[tuple[Any, Any]]) -> None:
    """Raises StateMismatchError unless the states are those of all ranks, or of all parts of a stream."""
    if all(total is None for _, total in numbers):
        return
    total = next(total for _, total in numbers if total is not None)
    if sorted(map(str, numbers)) != sorted(str((number, total)) for number in range(total)):
        ranks = ", ".join(f"{number} of {total}" for number, total in numbers[:16])
        raise StateMismatchError(
            f"merge_states needs the state of each rank once, and got those of {ranks} ({of}). The samples of a rank "
            "whose state is missing would come again."
        )


def _check_last_step(place: schema.Place, kind: dict[str, Any]) -> None:
    """Raises StateMismatchError if ranks cannot have ended the epoch while another is at this place."""
    samples, step = kind.get("of"), kind.get("ranks", 1) * (kind.get("batch_size") or 1)
    if samples is not None and kind.get("batches_per_epoch") is None and samples - place.position > step:
        raise StateMismatchError(
            f"these states are not of one step of one run: one rank has ended the epoch of {samples} samples, and "
            f"another is at position {place.position}, more than one step of {step} before its end. Save all ranks' "
            "states at the same step."
        )


def _check_same(facts: list[dict[str, Any]]) -> None:
    """Raises StateMismatchError if a fact differs between ranks."""
    for name in dict.fromkeys(itertools.chain.from_iterable(facts)):
        values = [fact.get(name) for fact in facts]
        if not all(_alike(value, values[0]) for value in values):
            shown = ", ".join(f"{value!r:.60}" for value in values[:16])
            raise StateMismatchError(
                f"these states are not of one step of one run: {name} is {shown}. Save all ranks' states at the same "
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
