"""The format of a loader's state: a place in an epoch, in plain values, and the check that it fits a loader.

`docs/design/06-order-and-state.md` describes the format. It has a version; later versions read earlier ones.
"""

from __future__ import annotations

import copy
import json
import operator
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from stoker.errors import StateError, StateFormatError, StateMismatchError

VERSION = 1

State = dict[str, Any]

Rank = tuple[int, int]
"""A rank, and the number of ranks."""

_HEAD = ("epoch", "seed", "batches", "position", "ahead", "kind")

_OF_RANK = re.compile(r"rank (\d+) of (\d+)")


class Place(NamedTuple):
    """A place in an epoch: its start, or the point at which it is resumed.

    Attributes:
        seed: the epoch's seed, or None if it is undecided.
        batches: number of batches that this rank has received, counted without a gap.
        position: position of all ranks in the epoch's order: in samples, or in batches if a batch sampler knows them by
            number.
        ahead: numbers of later batches that are not to be delivered: they were received before an earlier one
            (`in_order=False`), or `skip()` leaves them out.
        mark: the state of the user's sampler behind the batches that it has given.
        given: those of them that were not delivered, the first of them at this place.
        over: whether that sampler has ended, and `mark` is its state after its end.
        generators: for a sampler without a state, states of the generators that it draws from: before `iter()`, and
            before its first step if that was taken. See `loader/_epoch/sampler_walk.py`.
        epochs_ahead: for each object with `set_epoch`, by how much the epoch passed to it is ahead of the loader's.
        workers: states of the workers' streams.
        turn: the next worker in turn.
        order: the number from which the order follows, if the epoch has one beside its seed.
        undrawn: number of draws that the loader's generators still have to make: 0, 1 (the order's number) or 2 (seed
            and order). The numbers are known already, and are drawn all the same.
        root: seed of the first epoch of persistent workers, from which the seeds of their later epochs follow.
        through: whether the streams are at the end of the previous epoch, from which the datasets continue.
        before: of an epoch of which no sample was read, the own states of streams that are their own iterators.
        drawn: names of the random generators that samples have drawn from.
        past: at the start of an epoch, the states of the workers' streams at the end of the previous one, with which
            the states of ranks that have not ended it are merged.
    """

    seed: int | None = None
    batches: int = 0
    position: int = 0
    ahead: frozenset[int] = frozenset()
    mark: Any = None
    over: bool = False
    generators: tuple[Any, Any] | None = None
    epochs_ahead: tuple[tuple[str, int], ...] = ()
    workers: list[Any] | None = None
    turn: int = 0
    order: int | None = None
    undrawn: int = 0
    root: int | None = None
    through: bool = False
    before: list[Any] | None = None
    drawn: tuple[str, ...] = ()
    given: tuple[Any, ...] = ()
    past: list[Any] | None = None

    @property
    def is_decided(self) -> bool:
        """Returns whether the place lies in an epoch that has begun, and so is valid for that epoch only."""
        return self.seed is not None or self.batches > 0

    def streams(self, count: int) -> tuple[list[int], int, dict[int, Any]]:
        """Returns, for `count` workers, those whose streams continue, the next in turn among them, and the state from
        which each begins."""
        if self.workers is None:
            return list(range(count)), 0, {}
        if self.through:
            left = {number: copy.deepcopy(state) for number, state in enumerate(self.workers) if state is not None}
            return list(range(count)), 0, {number: {**state, "through": True} for number, state in left.items()}
        active = [number for number, state in enumerate(self.workers) if state is None or not state.get("ended")]
        turn = next((place for place, number in enumerate(active) if number >= self.turn), 0)
        # Copies: threads share this process, and a dataset may modify the state that it is given
        starts = {number: copy.deepcopy(self.workers[number]) for number in active if self.workers[number] is not None}
        return active, turn, starts


START = Place()


class NotSaid(NamedTuple):
    """Replaces the mark of a place if the sampler's `state_dict()` raised.

    Attributes:
        sampler: name of the sampler's class.
        error: the exception, as text.
    """

    sampler: str
    error: str


def packed(epoch: int, place: Place, kind: dict[str, Any], rank: Rank | None = None) -> State:
    """Returns the state of a loader of this kind at a place of an epoch, for `state_dict()`.

    All that a load needs is one value, so that a checkpoint that is read and written by key (as in
    `torch.distributed.checkpoint`) is complete, and does not mix the states of ranks. The other keys are for readers,
    and for checkpoints of earlier versions, which are read by the keys of a new loader's state.

    Args:
        rank: the rank to which the state belongs, named in the key of that value; None if all ranks have this state.

    Raises:
        StateError: the sampler's `state_dict()` raised.
    """
    if isinstance(place.mark, NotSaid):
        raise StateError(
            f"the {place.mark.sampler} cannot say where it stands: its state_dict() raised {place.mark.error}. Correct "
            "its state_dict(), or remove it: a sampler without one is resumed by walking it from its start."
        )
    head: dict[str, Any] = {"epoch": epoch, "seed": place.seed, "batches": place.batches, "position": place.position}
    head |= {"ahead": sorted(place.ahead), "kind": kind}
    fields = {"sampler": place.mark, "generators": place.generators, "workers": place.workers, "past": place.past}
    fields |= {"order": place.order, "root": place.root, "before": place.before}
    fields["given"] = [packed_batch(batch) for batch in place.given] or None
    below = {name: value for name, value in fields.items() if value is not None}
    counted = {"over": place.over, "told": place.epochs_ahead, "turn": place.turn}
    counted |= {"undrawn": place.undrawn, "through": place.through, "drawn": place.drawn}
    below |= {name: value for name, value in counted.items() if value}
    key = "below" if rank is None else f"rank {rank[0]} of {rank[1]}"
    return {"stoker": VERSION, **head, key: _as_one(head | below)}


def _as_one(values: dict[str, Any]) -> Any:
    """Returns JSON if it restores the values unchanged, else a tuple that holds them: a dataset's own state may hold
    any values, and a checkpoint that is written by key takes a tuple for one value."""
    plain = {name: _listed(value) for name, value in values.items()}
    try:
        text = json.dumps(plain)
        return text if json.loads(text) == plain else (plain,)
    except (TypeError, ValueError):
        return (plain,)


def _listed(value: Any) -> Any:
    return [_listed(item) for item in value] if type(value) is tuple else value


def states_by_rank(state: Any) -> dict[Rank, State]:
    """Returns the states of single ranks that a state holds, by rank and number of ranks; none if all ranks have the
    same one.
    """
    if not isinstance(state, Mapping) or "below" in state:
        return {}
    matches = {name: match for name in state if isinstance(name, str) and (match := _OF_RANK.fullmatch(name))}
    common = {name: value for name, value in state.items() if name not in matches}
    return {(int(match[1]), int(match[2])): {**common, "below": state[name]} for name, match in matches.items()}


def join_states(states: Iterable[Mapping[str, Any]]) -> State:
    """Returns one state that holds those of all ranks, in their order, from which each rank loads its own."""
    return {name: value for state in reversed(list(states)) for name, value in state.items()}


def state_for_all_ranks(state: State) -> State:
    """Returns the state of one rank as a state that any rank loads as its own."""
    return next(iter(states_by_rank(state).values()), state)


def unpacked(state: Mapping[str, Any]) -> tuple[int, Place, dict[str, Any]]:
    """Returns epoch, place and kind of a state.

    Raises:
        StateFormatError: the state is damaged, not a state of Stoker's, or of a newer format.
    """
    if not isinstance(state, Mapping) or "stoker" not in state:
        content = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise StateFormatError(
            f"this is no state of a Stoker loader: a dictionary from state_dict() was expected, not {content}. A state "
            "of torchdata's StatefulDataLoader cannot be taken over."
        )
    if state["stoker"] != VERSION:
        raise StateFormatError(
            f"the state has format {state['stoker']!r}, and this version of Stoker knows format {VERSION}: load it "
            "with the version that wrote it, or a later one."
        )
    below = _below(state.get("below"))
    head = below if "kind" in below else state  # of earlier versions
    missing = [name for name in (*_HEAD, "below") if name not in state or name not in {**head, "below": 0}]
    if missing:
        raise StateFormatError(f"the state lacks {', '.join(missing)}: it is truncated or was changed.")
    epoch, batches, position = (_count(head, name) for name in ("epoch", "batches", "position"))
    seed = None if head["seed"] is None else _count(head, "seed")
    kind, ahead, past = head["kind"], head["ahead"], below.get("past")
    generators, epochs_ahead, workers = below.get("generators"), below.get("told", ()), below.get("workers")
    before, pending = below.get("before"), below.get("given", ())
    if (
        not isinstance(kind, Mapping)
        or not isinstance(ahead, (list, tuple))
        or not all(isinstance(number, int) and number >= batches for number in ahead)
        or not (generators is None or _is_list(generators, 2))
        or not (_is_list(epochs_ahead) and all(_is_list(pair, 2) and isinstance(pair[1], int) for pair in epochs_ahead))
        or not (workers is None or (_is_list(workers) and workers))
        or not (before is None or _is_list(before))
        or not _is_list(drawn := below.get("drawn", ()))
        or not _is_list(pending)
        or not (past is None or _is_list(past))
    ):
        raise StateFormatError(f"the state is damaged: {json.dumps(dict(state), default=repr)[:200]}")
    place = Place(
        seed=seed,
        batches=batches,
        position=position,
        ahead=frozenset(ahead),
        mark=below.get("sampler"),
        over=bool(below.get("over")),
        generators=None if generators is None else (generators[0], generators[1]),
        epochs_ahead=tuple((name, number) for name, number in epochs_ahead),
        workers=None if workers is None else list(workers),
        turn=_count(below, "turn") if "turn" in below else 0,
        order=_count(below, "order") if "order" in below else None,
        undrawn=_count(below, "undrawn") if "undrawn" in below else 0,
        root=_count(below, "root") if "root" in below else None,
        through=bool(below.get("through")),
        before=None if before is None else list(before),
        drawn=tuple(map(str, drawn)),
        given=tuple(map(unpacked_batch, pending)),
        past=None if past is None else list(past),
    )
    return epoch, place, dict(kind)


def _below(value: Any) -> Mapping[str, Any]:
    """Returns the values that are one value in a state, from JSON or as they are."""
    try:
        below = json.loads(value) if isinstance(value, str) else {} if value is None else value
        if _is_list(below, 1):
            (below,) = below
        if isinstance(below, Mapping):
            return below
    except ValueError:
        pass
    raise StateFormatError(f"the state is damaged: below is {str(value)[:200]!r}")


def _is_list(value: Any, length: int | None = None) -> bool:
    return isinstance(value, (list, tuple)) and length in (None, len(value))


WORDS = {"of": "the number of the sampler's indices"}
"""Facts of a loader whose names in a state are no words for a user."""


def check_fits(theirs: dict[str, Any], ours: dict[str, Any], ahead: bool) -> None:
    """Raises StateMismatchError if a state of one kind cannot continue in a loader of another kind.

    The number of ranks may differ, and then also the batch size if the global batch size is unchanged.
    """
    theirs, ours = dict(theirs), dict(ours)
    if ahead and not same_batches(theirs, ours):
        raise StateMismatchError(
            "the state holds batches that were delivered out of order (in_order=False) or left out by skip(), so it "
            "fits only the same number of ranks and batch size: "
            f"{theirs.get('ranks')} ranks x {theirs.get('batch_size')} there, {ours.get('ranks')} x "
            f"{ours.get('batch_size')} here. strict=False delivers these batches again."
        )
    if "ranks" in theirs and "ranks" in ours and theirs["ranks"] != ours["ranks"]:
        for kind in (theirs, ours):
            kind.pop("distributed", None)  # a run on one rank need not set it
        if _global_batch(theirs) == _global_batch(ours):
            theirs.pop("batch_size", None), ours.pop("batch_size", None)
    theirs.pop("ranks", None), ours.pop("ranks", None)
    if "seed" not in theirs:  # a merged state of streams, whose ranks had different seeds
        ours.pop("seed", None)
    if "num_shards" not in theirs:  # a merged state, one of an earlier version, or one of the whole stream
        ours.pop("num_shards", None), ours.pop("index", None)
    if (theirs.get("samples"), ours.get("samples")) == (theirs.get("of"), ours.get("of")):
        theirs.pop("of", None), ours.pop("of", None)  # the sampler draws from the whole dataset: once is enough
    names = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
    if names:
        differences = "; ".join(
            f"{WORDS.get(name, name)} was {theirs.get(name)!r} and is {ours.get(name)!r}" for name in names
        )
        raise StateMismatchError(
            f"the state does not fit this loader: {differences}. Make the loader as it was when the state was saved, "
            "or pass strict=False if you know that the order is the same."
        )


def same_batches(theirs: dict[str, Any], ours: dict[str, Any]) -> bool:
    """Returns whether a batch's number has the same meaning in both kinds."""
    return all(theirs.get(name) == ours.get(name) for name in ("ranks", "batch_size"))


def _global_batch(kind: dict[str, Any]) -> Any:
    ranks, size = kind["ranks"], kind.get("batch_size") or 1
    return ranks * size if isinstance(ranks, int) and isinstance(size, int) else None


def _count(state: Mapping[str, Any], name: str) -> int:
    try:
        value = operator.index(state[name])
        if value < 0:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise StateFormatError(
            f"the state is damaged: {name} is {state.get(name)!r}, and a count was expected."
        ) from None
    return value


# Undelivered batches of a sampler's indices, as plain values of a state. Numbers, texts, tuples of them, and NumPy's
# and torch's numbers are restored as they were. Other indices have no such form: a state before the first batch holds
# them unchanged.


_PLAIN = {int, float, bool, str, type(None)}


def is_plain(batch: Any) -> bool:
    """Returns whether a batch, or a single index, has a form in a state."""
    kind = type(batch)
    if kind in _PLAIN:
        return True
    if kind is list or kind is tuple:
        return _PLAIN.issuperset(map(type, batch)) or all(map(is_plain, batch))
    if issubclass(kind, np.generic) or kind is np.ndarray:
        return batch.dtype.kind in "biuf"
    torch = sys.modules.get("torch")
    return torch is not None and kind is torch.Tensor and batch.device.type == "cpu" and _name(batch) in _DTYPES


_DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64")


def _name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def packed_batch(batch: Any) -> Any:
    """Returns the form of a plain batch; any other batch as it is, marked as such."""
    kind = type(batch)
    if kind in _PLAIN:
        return batch
    if not is_plain(batch):
        return {"as it is": batch}
    if kind is list:
        return batch if _PLAIN.issuperset(map(type, batch)) else [packed_batch(item) for item in batch]
    if kind is tuple:
        return {"tuple": [packed_batch(item) for item in batch]}
    if kind is np.ndarray:
        return {"array": [batch.dtype.name, batch.tolist()]}
    if issubclass(kind, np.generic):
        return {"numpy": [batch.dtype.name, batch.item()]}
    return {"torch": [_name(batch), batch.tolist()]}


def unpacked_batch(form: Any) -> Any:
    """Returns the batch of a form.

    Raises:
        StateFormatError: the state is damaged, or holds a tensor and there is no torch.
    """
    if type(form) is list:
        return form if _PLAIN.issuperset(map(type, form)) else [unpacked_batch(item) for item in form]
    if type(form) is not dict:
        return form
    try:
        ((name, value),) = form.items()
        if name == "as it is":
            return value
        if name == "tuple":
            return tuple(unpacked_batch(item) for item in value)
        dtype, values = value
        if name == "torch":
            import torch

            return torch.tensor(values, dtype=getattr(torch, dtype))
        return np.array(values, dtype) if name == "array" else np.dtype(dtype).type(values)
    except (ValueError, TypeError, AttributeError, ImportError) as error:
        raise StateFormatError(f"the state is damaged: a batch of indices is {str(form)[:200]}") from error
