"""An epoch of a loader, decided when it begins: its number, its seed, and the plan that follows from them."""

from __future__ import annotations

import operator
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from stoker import errors, samplers
from stoker.loader import arguments, world
from stoker.loader.generators import mix
from stoker.loader.plan import BatchesPlan, ComputedPlan, Endless, Plan, StreamedPlan, TurnPlan
from stoker.loader.resharding import reshared
from stoker.loader.shares import Mode, Share
from stoker.loader.sharing import may_gather
from stoker.loader.state import START, Place
from stoker.loader.walk import Walk, at_rest
from stoker.samplers import BatchSampler
from stoker.samplers.order import Order
from stoker.samplers.passes import WalkedInEpochs
from stoker.samplers.permutation import FORMAT_VERSION as ORDER_VERSION

if TYPE_CHECKING:
    from stoker.loader.dataloader import DataLoader


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

    @property
    def samples(self) -> int | None:
        """How many this rank has from `place` on; None where nobody knows."""
        return self.plan.samples

    def position(self, batches: int) -> int:
        """How far all ranks are in the epoch's order when each has received so many batches of it."""
        if self.share is None:
            return 0
        return self.share.global_position(batches - self.place.batches, self.size)

    def next_place(self) -> Place:
        """Where the next epoch begins."""
        return START if self.pieces is None else Place(seed=self.seed, position=self.position(self.pieces))


def start(loader: DataLoader[Any], number: int) -> Place:
    """Where an epoch begins of which nothing was received, as far as that is known before."""
    if loader.batches_per_epoch is not None:
        return loader._epochs.piece(number, _positions_in_piece(loader, loader.batches_per_epoch))
    return START if loader._is_stream or is_computed(loader) else at_rest(loader._index_sampler, loader.dataset)


def begin(loader: DataLoader[Any], walk: Walk | None, number: int, place: Place) -> Epoch:
    """The epoch `number` of the loader, from `place` on.

    Args:
        loader: a loader, or an iterator's snapshot of one.
        walk: a pass over the user's sampler, where that is walked.
        number: of the epoch.
        place: where to begin; its seed, if it has one, is the epoch's.

    Raises:
        StateMismatchError: the user's sampler ends before the place.
    """
    here, pieces = world_of(loader), loader.batches_per_epoch
    if pieces is not None and place.seed is None:
        place = start(loader, number)
    seed = place.seed
    if seed is None:
        # Ranks need one order, and their generators may differ
        seed = seed_of(loader, number) if is_fixed(loader) else draw_seed(loader)
    if pieces is not None:
        loader._epochs.seed = seed
    if walk is None:
        loader._epochs.passed(number)
    bound_to = loader.num_workers if loader.worker_init_fn is not None and loader.num_workers else None
    if loader._is_stream:
        active, turn, starts = place.streams(max(1, loader.num_workers))
        return Epoch(number, seed, TurnPlan(active, turn, starts, loader.in_order), place)
    if walk is not None:
        at = (0, 0) if place.mark is None else (place.batches, place.position)
        size = _size_of_batches(loader)
        walked = StreamedPlan(iter(walk), loader._auto_collation, bound_to=bound_to, at=at, mark=walk.mark, size=size)
        walked.forward(place.batches)
        return Epoch(number, seed, walked, place)
    _check_something_is_left(loader)
    mode = loader.distributed or "exact"
    batches = loader.batch_sampler
    if has_function(batches, "batches"):
        known = batches.batches(mix(seed))
        share = Share(len(known), place.position, here, mode)
        by_number = BatchesPlan(known, share, first=place.batches, bound_to=bound_to)
        return Epoch(number, seed, by_number, place, share)
    order = order_of(sampler_of_indices(loader), seed, endless=pieces is not None)
    share = Share(len(order), place.position, here, mode)
    size, drop_last = (None, False) if batches is None else (batches.batch_size, batches.drop_last)
    limit = None if pieces is None else max(0, pieces - place.batches)
    first, arrays = place.batches, may_gather(loader)
    computed = ComputedPlan(order, share, size, drop_last, first=first, bound_to=bound_to, limit=limit, arrays=arrays)
    return Epoch(number, seed, computed, place, share, size or 1, pieces)


def _positions_in_piece(loader: DataLoader[Any], batches: int) -> int:
    """How many positions of an order without an end all ranks cover with so many batches."""
    return batches * (getattr(loader.batch_sampler, "batch_size", None) or 1) * world_of(loader).size


def order_of(sampler: Any, seed: int, *, endless: bool) -> Order:
    """All indices of an epoch with this seed, by position: of all ranks, and of all epochs where there is no end."""
    key = mix(seed)
    if endless:
        return Endless(len(sampler), lambda number: _order(sampler, mix(key, number)))
    return _order(sampler, key)


def _order(sampler: Any, key: int) -> Order:
    order: Order = sampler.order(key)
    return order


def sampler_of_indices(loader: DataLoader[Any]) -> Any:
    """Who gives single indices, as far as that can be told from outside; else None."""
    batches = loader.batch_sampler
    if batches is None:
        return loader.sampler
    return batches.sampler if type(batches) is BatchSampler else None


def _size_of_batches(loader: DataLoader[Any]) -> int | None:
    """Indices in each batch but the last, where one with fewer is the last for sure."""
    batches, torch = loader.batch_sampler, sys.modules.get("torch")
    fixed = type(batches) is BatchSampler or (torch is not None and type(batches) is torch.utils.data.BatchSampler)
    return batches.batch_size if fixed else None


def knower(loader: DataLoader[Any]) -> Any:
    """Who knows the order as a function: a sampler of indices, or one of batches that do not follow from these."""
    return loader.batch_sampler if has_function(loader.batch_sampler, "batches") else sampler_of_indices(loader)


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
        # Accelerate gives our sampler a generator: it is obeyed, unless the order follows from seed= anyway
        told = is_fixed(loader) or getattr(sampler, "generator", loader.generator) is loader.generator
        return loader.sampler is sampler and told
    return has_function(sampler, "order")


def has_function(sampler: Any, name: str) -> bool:
    """Whether a sampler offers its epochs as a function: no generator was given, and no subclass walks otherwise."""
    kind = type(sampler)
    if not callable(getattr(kind, name, None)) or getattr(sampler, "generator", None) is not None:
        return False
    homes = [base for base in kind.__mro__ if "__iter__" in vars(base) or name in vars(base)]
    return name in vars(homes[0])


class Settings(Protocol):
    """What says whose epoch it is: of a loader, and of the passes that it lends."""

    seed: int | None
    distributed: Mode | None
    num_replicas: int | None
    rank: int | None
    batches_per_epoch: int | None


def is_fixed(loader: Settings) -> bool:
    """Whether the epochs' seeds follow from numbers, and not from a generator."""
    return loader.seed is not None or loader.distributed is not None


def world_of(loader: Settings) -> world.World:
    """The ranks that share the epoch: only this one, unless `distributed=` was asked for."""
    if loader.distributed is None:
        return world.World(0, 1)
    if loader.rank is not None and loader.num_replicas is not None:
        return world.find((loader.rank, loader.num_replicas))
    return world.find()


def seed_of(loader: Settings, number: int) -> int:
    """The seed of an epoch that follows from `seed=`, or from 0; without an end all epochs are one."""
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
    """What the order of a loader depends on: a state of another kind does not fit."""
    dataset, sampler = loader.dataset, loader._index_sampler
    kind: dict[str, Any] = {"seed": loader.seed}
    fingerprint = getattr(dataset, "fingerprint", None)
    if fingerprint is not None:
        kind["fingerprint"] = str(fingerprint() if callable(fingerprint) else fingerprint)
    if loader._is_stream:
        shared = loader.shard == "auto" and loader.worker_init_fn is None
        kind |= {"order": "stream", "batch_size": loader.batch_size, "drop_last": loader.drop_last}
        return kind | {"shard": "auto" if shared else "none"}
    inner, given = getattr(sampler, "sampler", None), {"batch_size": None, "drop_last": None}
    kind |= {"samples": _length(dataset)} | {name: _plain(getattr(sampler, name, None)) for name in given}
    if not is_computed(loader):
        kind["order"] = f"walked from {_named(sampler)}" + (f" over {_named(inner)}" if inner is not None else "")
        kind["num_replicas"] = _plain(getattr(sampler if inner is None else inner, "num_replicas", None))
        return kind
    known = knower(loader)
    kind |= {"order": f"{_named(known)}/{ORDER_VERSION}", "of": _length(known), "ranks": world_of(loader).size}
    return kind | {"distributed": loader.distributed, "batches_per_epoch": loader.batches_per_epoch}


def _named(sampler: Any) -> str:
    return type(sampler).__qualname__


def _length(sized: Any) -> int | None:
    """Its length, if it has one: wrappers find out only when they are asked."""
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None


def _plain(value: Any) -> int | None:
    return value if isinstance(value, bool) else operator.index(value) if hasattr(value, "__index__") else None


def length_of(loader: DataLoader[Any]) -> int:
    """Batches in an epoch of this rank; raises TypeError where the sampler has no length."""
    if loader.batches_per_epoch is not None:
        return loader.batches_per_epoch
    known = knower(loader)
    # Two loaders may have one sampler, which then counts for the one that was made last
    is_ours = isinstance(known, WalkedInEpochs) and is_computed(loader)
    if is_ours or (loader.distributed is not None and is_computed(loader)):
        return _length_for(loader, world_of(loader))
    length: int = len(loader._index_sampler)
    return length


def steps_of_all_ranks(loader: DataLoader[Any]) -> int:
    """Batches that are still to come in an epoch that begins now, of the rank that has most: the first one. 0 where
    nothing is shared out."""
    if loader.distributed is None:
        return 0
    place = loader._resumed or START
    if loader.batches_per_epoch is not None:
        return max(0, loader.batches_per_epoch - place.batches)
    return _length_for(loader, world_of(loader)._replace(rank=0), place.position)


def _length_for(loader: DataLoader[Any], rank: world.World, begin: int = 0) -> int:
    known, batches = knower(loader), loader.batch_sampler
    share = len(Share(len(known), begin, rank, loader.distributed or "exact"))
    if batches is None or known is batches:
        return share
    return int(share // batches.batch_size if batches.drop_last else -(-share // batches.batch_size))


def resumed(loader: DataLoader[Any], number: int, place: Place) -> Place:
    """Prepares a loader to begin epoch `number` at a place, and returns that place as the loader's workers need it.

    Raises:
        StateFormatError: the place is none of this loader's: the state is damaged.
        StateMismatchError: its streams cannot be shared out anew.
    """
    if loader._is_stream and place.workers is None and place.batches:
        raise errors.StateFormatError("the state does not say where the streams stand: it is truncated.")
    if place.workers is not None:
        from stoker.loader.sharding import read_again

        place = place._replace(workers=reshared(place.workers, max(1, loader.num_workers)))
        again = sum(read_again(loader.dataset, state) for state in place.workers or ())
        if again:
            loader._tell_once(
                f"{type(loader.dataset).__name__} cannot say where it stands: to resume it, its workers read {again:,} "
                "samples again and throw them away. To save that, give it state_dict() and load_state_dict(state), or "
                "build it from stoker's streams."
            )
    end = None
    if loader.batches_per_epoch is not None:
        left = max(0, loader.batches_per_epoch - place.batches)
        end = place.position + _positions_in_piece(loader, left)
    elif is_computed(loader):
        length = _length(knower(loader))
        if length is not None and place.position > length:
            raise errors.StateFormatError(
                f"the state is damaged: it stands at position {place.position} of an order of {length}."
            )
        if place.position < place.batches:
            raise errors.StateFormatError(
                f"the state is damaged: it stands at position {place.position} behind {place.batches} batches."
            )
    loader._epochs.resume(loader, number, place, end)
    return place


def check_samplers(loader: DataLoader[Any]) -> None:
    """Refuses a sampler that was made for a larger dataset, and generators of another device, before they are used."""
    if loader._is_stream:
        return
    known, samples = knower(loader), _length(loader.dataset)
    if isinstance(known, WalkedInEpochs):
        arguments.check_generator(getattr(known, "generator", None))
    for name in ("weights", "lengths", "labels"):
        count = _length(getattr(known, name, None))
        if count is None or samples is None or count == samples:
            continue
        told = f"the {type(known).__name__} has {count} {name}, but the dataset has {samples} samples"
        if count > samples:
            raise errors.SamplerError(f"{told}: one is needed for each. Were they made for another split?")
        loader._tell_once(f"{told}: those from {count} on are never drawn. One is needed for each.")


def check_shares(loader: DataLoader[Any]) -> None:
    """Refuses what cannot be shared out among ranks, or has no end to cut off."""
    asked = {"distributed": loader.distributed, "batches_per_epoch": loader.batches_per_epoch}
    asked = {name: value for name, value in asked.items() if value is not None}
    if not asked:
        return
    told = ", ".join(f"{name}={value!r}" for name, value in asked.items())
    if not is_computed(loader):
        if loader._is_stream:
            way = "keep one iterator, from which each epoch takes itertools.islice(batches, n)"
            if loader.distributed is not None:
                way = (
                    "give each rank a part of the data: dataset.shard(num_shards=ranks, index=rank) where the dataset "
                    "has that method, else other files or every n-th sample (see the guide on several GPUs)"
                )
            raise errors.SamplerError(
                f"{told} needs an order that is known by position, but {type(loader.dataset).__name__} is a stream, "
                f"which can only be iterated from its start. Leave it out, and {way}."
            )
        sampler = loader._index_sampler
        if isinstance(sampler, BatchSampler):
            sampler = sampler.sampler  # the one that the user gave
        name, package = type(sampler).__name__, type(sampler).__module__.partition(".")[0]
        way = (
            f"Import it from stoker, whose {name} knows its order (`from stoker import {name}`)"
            if package == "torch" and name in samplers.__all__
            else "Leave it out and let that give each rank its share, or give the sampler a method order(key) (a batch "
            "sampler: batches(key))"
        )
        raise errors.SamplerError(
            f"{told} needs an order that is known by position, but the {name} ({package}) can only be iterated from "
            f"its start. {way}."
        )
    if loader.batches_per_epoch is not None and has_function(loader.batch_sampler, "batches"):
        raise errors.SamplerError(
            f"{told} cannot be used with {type(loader.batch_sampler).__name__}, whose passes hold whole batches: "
            "iterate over its epochs one after the other."
        )
    if loader.batches_per_epoch is not None and _length(knower(loader)) == 0:
        raise errors.SamplerError(f"{told} needs an order that goes on for ever, but there are no samples.")
    if loader.rank is not None:  # else who shares is asked when an epoch begins: a launcher may not have said it yet
        _check_something_is_left(loader)


def _check_something_is_left(loader: DataLoader[Any]) -> None:
    """Refuses an epoch of which each sample is left out."""
    if loader.distributed is None:
        return
    known = knower(loader)
    of = _length(known)
    leaves_out = loader.distributed == "drop" or getattr(loader.batch_sampler, "drop_last", False)
    if of and leaves_out and length_of(loader) == 0:
        here = world_of(loader)
        raise errors.SamplerError(
            f"distributed={loader.distributed!r} leaves nothing for rank {here.rank} of {here.size} ({here.source}): "
            f"there are {of} to share out, and batch_size={loader.batch_size}, drop_last={loader.drop_last}. Use 'pad' "
            "or 'exact' without drop_last, smaller batches, or fewer ranks."
        )
