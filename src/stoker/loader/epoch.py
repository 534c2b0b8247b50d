"""An epoch of a loader, decided when it begins: its number, its seed, and the plan that follows from them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stoker import errors
from stoker.loader import world
from stoker.loader.generators import mix
from stoker.loader.plan import BatchesPlan, ComputedPlan, Endless, Plan, StreamedPlan, TurnPlan
from stoker.loader.sharding import reshared
from stoker.loader.shares import Share
from stoker.loader.state import START, Place
from stoker.loader.walk import Walk
from stoker.samplers import BatchSampler
from stoker.samplers.order import Order
from stoker.samplers.permutation import FORMAT_VERSION as ORDER_VERSION

if TYPE_CHECKING:
    from stoker.loader.dataloader import DataLoader


class Epochs:
    """Numbers the epochs of a loader, across its iterators. Those without an end are one order, cut into pieces."""

    def __init__(self) -> None:
        self.begun = 0
        self.seed: int | None = None  # of the order without an end
        self._origin = (0, 0)  # (number, position) from which on all pieces have one length
        self._told: dict[str, tuple[int, int]] = {}  # what has a set_epoch → (its epoch, our number then)

    def next(self) -> int:
        """The number of the epoch that begins now."""
        self.begun += 1
        return self.begun - 1

    def piece(self, number: int, length: int) -> Place:
        """Where a piece of the endless order begins, if all pieces have this length."""
        return Place(seed=self.seed, position=self._origin[1] + (number - self._origin[0]) * length)

    def announce(self, loader: DataLoader[Any]) -> int | None:
        """Calls `set_epoch` where the dataset or a sampler has it; returns what the dataset was told, if anything.

        Whoever calls it himself is obeyed: an epoch that is not the one we left there is his, and we count on from it.
        """
        answer = None
        batches = loader.batch_sampler
        holders = {"sampler": loader.sampler, "batch_sampler": batches, "in it": getattr(batches, "sampler", None)}
        for name, holder in {**holders, "dataset": loader.dataset}.items():
            if not callable(getattr(type(holder), "set_epoch", None)):
                continue
            value, number = self._told.get(name, (0, 0))
            now = _epoch_of(holder)
            if now is not None and now != value:
                value, number = now, self.begun
            elif number != self.begun or now is None:
                value, number = value + self.begun - number, self.begun
                holder.set_epoch(value)
            self._told[name] = value, number
            answer = value if name == "dataset" else answer
        return answer

    def resume(self, number: int, end: int | None, seed: int | None) -> None:
        """The next epoch has this number; the piece that follows it begins at `end`."""
        self.begun = number
        if end is not None:
            self.seed, self._origin = seed, (number + 1, end)


def _epoch_of(holder: Any) -> int | None:
    """The epoch that was set last, under the names that torch's samplers and Hugging Face's streams give it."""
    for name in ("epoch", "_epoch"):
        value = getattr(holder, name, None)
        if isinstance(value, int):
            return value
    return None


class Epoch(NamedTuple):
    """One epoch, as an iterator walks it.

    Attributes:
        number: counted from 0.
        seed: 63 bits from which all its randomness follows.
        plan: gives its steps, from `place` on.
        place: where it begins: the start, or where a state says.
        share: this rank's part of what is left; None where positions are not the loader's to share.
        size: positions that one step of one rank covers.
        pieces: batches in a piece of an order without an end, else None.
    """

    number: int
    seed: int
    plan: Plan
    place: Place
    share: Share | None = None
    size: int = 1
    pieces: int | None = None

    def position(self, batches: int) -> int:
        """How far all ranks are in the epoch's order when each has received so many batches of it."""
        if self.share is None:
            return 0
        return self.share.global_position(batches - self.place.batches, self.size)

    def next_place(self) -> Place:
        """Where the next epoch begins."""
        return START if self.pieces is None else Place(seed=self.seed, position=self.position(self.pieces))


def begin(loader: DataLoader[Any], walk: Walk | None, number: int, place: Place) -> Epoch:
    """The epoch `number` of the loader, from `place` on.

    Args:
        loader: a loader, or an iterator's snapshot of one.
        walk: a pass over the user's sampler, where that is walked.
        number: of the epoch.
        place: where to begin; its seed, if it has one, is the epoch's.
    """
    here, pieces = world_of(loader), loader.batches_per_epoch
    if pieces is not None and place == START:
        place = loader._epochs.piece(number, pieces * (loader.batch_size or 1) * here.size)
    seed = place.seed
    if seed is None:
        seed = draw_seed(loader) if loader.seed is None else seed_of(loader, number)
    if pieces is not None:
        loader._epochs.seed = seed
    bound_to = loader.num_workers if loader.worker_init_fn is not None and loader.num_workers else None
    if loader._is_stream:
        active, turn, starts = place.streams(max(1, loader.num_workers))
        return Epoch(number, seed, TurnPlan(active, turn, starts), place)
    if walk is not None:
        walk.begin()
        at = (0, 0) if place.mark is None else (place.batches, place.position)
        walked = StreamedPlan(
            walk.iterator, loader._auto_collation, skip=place.ahead, bound_to=bound_to, at=at, mark=walk.mark
        )
        walked.forward(place.batches)
        return Epoch(number, seed, walked, place)
    mode = loader.distributed or "exact"
    batches = loader.batch_sampler
    if has_function(batches, "batches"):
        known = batches.batches(mix(seed))
        share = Share(len(known), place.position, here, mode)
        by_number = BatchesPlan(known, share, first=place.batches, skip=place.ahead, bound_to=bound_to)
        return Epoch(number, seed, by_number, place, share)
    order = order_of(loader, seed)
    share = Share(len(order), place.position, here, mode)
    size, drop_last = (None, False) if batches is None else (batches.batch_size, batches.drop_last)
    limit = None if pieces is None else max(0, pieces - place.batches)
    computed = ComputedPlan(
        order, share, size, drop_last, first=place.batches, skip=place.ahead, bound_to=bound_to, limit=limit
    )
    return Epoch(number, seed, computed, place, share, size or 1, pieces)


def order_of(loader: DataLoader[Any], seed: int) -> Order:
    """All indices of an epoch with this seed, by position: of all ranks, and of all epochs where there is no end."""
    key = mix(seed)
    if loader.batches_per_epoch is None:
        return _pass(loader, key)
    n = len(_pass(loader, key))
    return Endless(n, lambda number: _pass(loader, mix(key, number)))


def _pass(loader: DataLoader[Any], key: int) -> Order:
    order: Order = sampler_of_indices(loader).order(key)
    return order


def sampler_of_indices(loader: DataLoader[Any]) -> Any:
    """Who gives single indices, as far as that can be told from outside; else None."""
    batches = loader.batch_sampler
    if batches is None:
        return loader.sampler
    return batches.sampler if type(batches) is BatchSampler else None


def is_computed(loader: DataLoader[Any]) -> bool:
    """Whether the order is a function of the epoch's seed, so that no sampler is walked.

    Asked at each epoch: frameworks replace samplers behind a loader's back.
    """
    if loader._is_stream:
        return False
    if has_function(loader.batch_sampler, "batches"):
        return True
    sampler = sampler_of_indices(loader)
    if sampler is not None and sampler is loader._own_sampler:
        return loader.sampler is sampler and getattr(sampler, "generator", loader.generator) is loader.generator
    return has_function(sampler, "order")


def has_function(sampler: Any, name: str) -> bool:
    """Whether a sampler offers its epochs as a function: no generator was given, and no subclass walks otherwise."""
    kind = type(sampler)
    if not callable(getattr(kind, name, None)) or getattr(sampler, "generator", None) is not None:
        return False
    homes = [base for base in kind.__mro__ if "__iter__" in vars(base) or name in vars(base)]
    return name in vars(homes[0])


def world_of(loader: DataLoader[Any]) -> world.World:
    """The ranks that share the epoch: only this one, unless `distributed=` was asked for."""
    if loader.distributed is None:
        return world.World(0, 1)
    if loader.rank is not None and loader.num_replicas is not None:
        return world.find((loader.rank, loader.num_replicas))
    return world.find()


def seed_of(loader: DataLoader[Any], number: int) -> int:
    """The seed of an epoch, where `seed=` was given; without an end all epochs are one."""
    return mix(loader.seed or 0, 0 if loader.batches_per_epoch is not None else number) >> 1


def draw_seed(loader: DataLoader[Any]) -> int:
    """63 bits from `generator`, else from torch's global generator where torch is in use, else from NumPy's."""
    if isinstance(loader.generator, np.random.Generator):
        return int(loader.generator.integers(2**63 - 1))
    torch = sys.modules.get("torch")
    if torch is None:
        return int(np.random.randint(2**63 - 1, dtype=np.int64))
    return int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item())


def kind_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """What the order of a loader depends on, beside its seed: a state of another kind does not fit."""
    dataset = loader.dataset
    kind: dict[str, Any] = {}
    fingerprint = getattr(dataset, "fingerprint", None)
    if fingerprint is not None:
        kind["fingerprint"] = str(fingerprint() if callable(fingerprint) else fingerprint)
    if loader._is_stream:
        kind |= {"order": "stream", "batch_size": loader.batch_size, "drop_last": loader.drop_last}
        return kind
    if hasattr(dataset, "__len__"):
        kind["samples"] = len(dataset)
    sampler = loader._index_sampler
    if not is_computed(loader):
        kind["order"] = f"walked from {type(sampler).__qualname__}"
        return kind
    here = world_of(loader)
    kind |= {"ranks": here.size, "distributed": loader.distributed, "batches_per_epoch": loader.batches_per_epoch}
    if has_function(loader.batch_sampler, "batches"):
        kind["order"] = f"{type(sampler).__qualname__}/{ORDER_VERSION}"
        return kind
    inner = sampler_of_indices(loader)
    kind["order"] = f"{type(inner).__qualname__}/{ORDER_VERSION}"
    kind |= {"batch_size": getattr(sampler, "batch_size", None), "drop_last": getattr(sampler, "drop_last", False)}
    return kind


def length_of(loader: DataLoader[Any]) -> int:
    """Batches in an epoch of this rank; raises TypeError where the sampler has no length."""
    if loader.batches_per_epoch is not None:
        return loader.batches_per_epoch
    if loader.distributed is None or not is_computed(loader):
        length: int = len(loader._index_sampler)
        return length
    batches, here = loader.batch_sampler, world_of(loader)
    if has_function(batches, "batches"):
        return len(Share(len(batches), 0, here, loader.distributed))
    mine = len(Share(len(sampler_of_indices(loader)), 0, here, loader.distributed))
    if batches is None:
        return mine
    return int(mine // batches.batch_size if batches.drop_last else -(-mine // batches.batch_size))


def resumed(loader: DataLoader[Any], number: int, place: Place, strict: bool) -> Place:
    """Prepares a loader to begin epoch `number` at a place, and returns that place as the loader's workers need it.

    Raises:
        StateMismatchError: the state's seed is not that of the loader, or its streams cannot be shared out anew.
    """
    if loader.seed is not None:
        mine = seed_of(loader, number)
        if place.seed is None:
            place = place._replace(seed=mine)
        elif strict and place.seed != mine:
            raise errors.StateMismatchError(
                f"the state's epoch {number} has another seed than seed={loader.seed} gives it: it was saved with "
                "another seed, or without one. Pass the seed that it was saved with, or strict=False to finish this "
                "epoch in the state's order and begin the next in this loader's."
            )
    if place.workers is not None:
        place = place._replace(workers=reshared(place.workers, max(1, loader.num_workers)))
    end = None
    if loader.batches_per_epoch is not None:
        left = max(0, loader.batches_per_epoch - place.batches)
        end = place.position + left * (loader.batch_size or 1) * world_of(loader).size
    loader._epochs.resume(number, end, place.seed)
    return place


def check_shares(loader: DataLoader[Any]) -> None:
    """Refuses what cannot be shared out among ranks, or has no end to cut off."""
    asked = {"distributed": loader.distributed, "batches_per_epoch": loader.batches_per_epoch}
    asked = {name: value for name, value in asked.items() if value is not None}
    if not asked:
        return
    told = ", ".join(f"{name}={value!r}" for name, value in asked.items())
    if not is_computed(loader):
        what = "a stream" if loader._is_stream else f"the {type(loader._index_sampler).__name__}"
        raise errors.SamplerError(
            f"{told} needs an order that is known by position, but {what} can only be walked. Leave it out and let "
            "that give each rank its share, or give the sampler a method order(key) (a batch sampler: batches(key))."
        )
    if loader.batches_per_epoch is not None and has_function(loader.batch_sampler, "batches"):
        raise errors.SamplerError(
            f"{told} cannot be used with {type(loader.batch_sampler).__name__}, whose passes hold whole batches: "
            "walk its epochs one after the other."
        )
    here = world_of(loader)
    if loader.distributed == "drop" and loader.batches_per_epoch is None and length_of(loader) == 0:
        raise errors.SamplerError(
            f"distributed='drop' leaves nothing for each of {here.size} ranks ({here.source}): {len(loader.dataset)} "
            f"samples, batches of {loader.batch_size}. Use 'pad' or 'exact', smaller batches, or fewer ranks."
        )
