"""An epoch of a loader, decided when it begins: its number, its seed, and the plan that follows from them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from stoker import errors, samplers
from stoker._core.protocol import asked, offered, offers
from stoker.datasets import declared
from stoker.loader._epoch import ranks
from stoker.loader._epoch.epoch_counter import EpochCounter
from stoker.loader._epoch.gather_or_split import may_gather
from stoker.loader._epoch.plan import BatchesPlan, ComputedPlan, Endless, Plan, StreamedPlan, TurnPlan
from stoker.loader._epoch.ranks import Mode, RankSlice
from stoker.loader._epoch.sampler_walk import at_rest
from stoker.loader._job import datapipes
from stoker.loader._random.generators import mix
from stoker.loader._state.resharding import going_on, not_begun, reshared
from stoker.loader._state.schema import START, Place
from stoker.samplers.batch import BatchSampler
from stoker.samplers.order import Order
from stoker.samplers.passes import WalkedInEpochs

if TYPE_CHECKING:
    from stoker.loader._epoch.sampler_walk import SamplerWalk
    from stoker.loader._options.loader_options import LoaderOptions


class Epoch(NamedTuple):
    """One epoch of an iterator.

    Attributes:
        number: counted from 0.
        seed: 63 bits from which all randomness of the epoch follows.
        plan: yields the steps, from `place` on.
        place: the start of the epoch, or the place of a loaded state.
        share: this rank's positions in the rest of the epoch; None if the loader does not divide positions.
        size: positions that one step of one rank covers.
        pieces: batches in a piece of an endless order, else None.
        root: seed of the first epoch of the persistent workers.
    """

    number: int
    seed: int
    plan: Plan
    place: Place
    share: RankSlice | None = None
    size: int = 1
    pieces: int | None = None
    root: int | None = None

    @property
    def samples(self) -> int | None:
        """Returns the number of samples of this rank from `place` on; None if it is unknown."""
        return self.plan.samples

    def position(self, batches: int) -> int:
        """Returns the position of all ranks in the epoch's order after each has received `batches`."""
        if self.share is None:
            return 0
        return self.share.global_position(batches - self.place.batches, self.size)

    def next_place(self) -> Place:
        """Returns the start of the next epoch."""
        return START if self.pieces is None else Place(seed=self.seed, position=self.position(self.pieces))


def start(options: LoaderOptions, epochs: EpochCounter, number: int) -> Place:
    """Returns the start of an epoch, as far as it is known before the epoch begins."""
    if options.batches_per_epoch is not None:
        return epochs.piece(number, _positions_in_piece(options, options.batches_per_epoch))
    if options.is_stream:
        before = declared.places(options.dataset)
        return START if before is None else START._replace(before=before)
    return START if is_computed(options) else at_rest(options.index_sampler, options.dataset)


def walked(options: LoaderOptions, walk: SamplerWalk) -> StreamedPlan:
    """Returns the plan of a pass over the user's sampler."""
    at = (0, 0) if walk.place.mark is None else (walk.place.batches, walk.place.position)
    size, bound_to = _size_of_batches(options), _bound_to(options)
    mark = walk.mark if walk.keeps_state else None
    walk.plan = StreamedPlan(
        iter(walk), options.auto_collation, bound_to=bound_to, at=at, mark=mark, size=size, left=walk.left
    )
    return walk.plan


def _bound_to(options: LoaderOptions) -> int | None:
    return options.num_workers if options.num_workers and datapipes.prepares_workers(options) else None


def begin(
    options: LoaderOptions, epochs: EpochCounter, walked: StreamedPlan | None, number: int, place: Place
) -> Epoch:
    """Returns epoch `number` of the loader, from `place` on.

    Args:
        options: of the loader.
        epochs: counts the loader's epochs.
        walked: the plan of a pass over a walked sampler, else None.
        number: of the epoch.
        place: start of the epoch, with the epoch's seed unless that follows from `seed=`.

    Raises:
        StateMismatchError: the user's sampler ends before the place.
    """
    here, pieces = world_of(options), options.batches_per_epoch
    if pieces is not None and place.seed is None:
        place = start(options, epochs, number)._replace(ahead=place.ahead)
    seed = seed_of(options, number) if place.seed is None else place.seed
    if place.order is None and datapipes.is_iter(options.dataset):
        place = place._replace(order=datapipes.agreed(seed))
    if pieces is not None:
        epochs.seed = seed
    if walked is None:
        epochs.passed(number)
    bound_to = _bound_to(options)
    if options.is_stream:
        if place.order is not None:
            datapipes.seed(options.dataset, place.order)
        workers = max(1, options.num_workers)
        if place.workers is None and (begins := offered(options.dataset, "start_state")) is not None:
            place = place._replace(workers=[not_begun(begins) for _ in range(workers)])
        active, turn, starts = place.streams(workers)
        return Epoch(number, seed, TurnPlan(active, turn, starts, options.in_order), place)
    if walked is not None:
        walked.forward(place.batches)
        return Epoch(number, seed, walked, place)
    _check_something_is_left(options)
    plan, share, size = computed(options, seed, place, here, bound_to=bound_to, arrays=may_gather(options))
    return Epoch(number, seed, plan, place, share, size, pieces)


def computed(
    options: LoaderOptions,
    seed: int,
    place: Place,
    here: ranks.World,
    *,
    bound_to: int | None = None,
    arrays: bool = False,
) -> tuple[BatchesPlan | ComputedPlan, RankSlice, int]:
    """Returns the plan of an epoch whose order is computed, the rank's positions, and the positions in a step.

    Args:
        options: of the loader; `is_computed(options)`.
        seed: of the epoch.
        place: from which the plan begins.
        here: the rank.
        bound_to: number of workers if step k belongs to worker k mod n.
        arrays: whether indices of a batch are an array.
    """
    mode, batches = options.distributed or "exact", options.batch_sampler
    key = seed if place.order is None else place.order
    if has_function(batches, "batches"):
        known = batches.batches(mix(key))
        share = RankSlice(len(known), place.position, here, mode)
        return BatchesPlan(known, share, first=place.batches, bound_to=bound_to), share, 1
    pieces = options.batches_per_epoch
    order = order_of(sampler_of_indices(options), key, endless=pieces is not None)
    share = RankSlice(len(order), place.position, here, mode)
    size, drop_last = (None, False) if batches is None else (batches.batch_size, batches.drop_last)
    limit = None if pieces is None else max(0, pieces - place.batches)
    plan = ComputedPlan(
        order, share, size, drop_last, first=place.batches, bound_to=bound_to, limit=limit, arrays=arrays
    )
    return plan, share, size or 1


def _positions_in_piece(options: LoaderOptions, batches: int) -> int:
    """Returns the positions of an endless order that all ranks cover with `batches` each."""
    return batches * (asked(options.batch_sampler, "batch_size") or 1) * world_of(options).size


def order_of(sampler: Any, seed: int, *, endless: bool) -> Order:
    """Returns the indices of an epoch with this seed, by position: of all ranks, and of all epochs if endless."""
    key = mix(seed)
    if endless:
        return Endless(len(sampler), lambda number: _order(sampler, mix(key, number)))
    return _order(sampler, key)


def _order(sampler: Any, key: int) -> Order:
    order: Order = sampler.order(key)
    return order


def sampler_of_indices(options: LoaderOptions) -> Any:
    """Returns the sampler that yields single indices; None if it is inside an unknown batch sampler."""
    batches = options.batch_sampler
    if batches is None:
        return options.sampler
    return batches.sampler if type(batches) is BatchSampler else None


def _size_of_batches(options: LoaderOptions) -> int | None:
    """Returns the indices in a batch, if a smaller batch is always the last one; else None."""
    batches, torch = options.batch_sampler, sys.modules.get("torch")
    fixed = type(batches) is BatchSampler or (torch is not None and type(batches) is torch.utils.data.BatchSampler)
    return batches.batch_size if fixed else None


def knower(options: LoaderOptions) -> Any:
    """Returns the sampler that may offer its order as a function: a batch sampler with `batches`, or one of indices."""
    return options.batch_sampler if has_function(options.batch_sampler, "batches") else sampler_of_indices(options)


def is_computed(options: LoaderOptions) -> bool:
    """Returns whether the order is a function of the epoch's seed, so that no sampler is walked.

    Called at each epoch, because frameworks replace the samplers of a loader.
    """
    if options.is_stream:
        return False
    if has_function(options.batch_sampler, "batches"):
        return True
    sampler = sampler_of_indices(options)
    if sampler is not None and sampler is options.own_sampler:
        # A generator that Accelerate gives our sampler is used, unless the order follows from seed=
        is_known = is_fixed(options) or asked(sampler, "generator", options.generator) is options.generator
        return options.sampler is sampler and is_known
    return has_function(sampler, "order")


def has_function(sampler: Any, name: str) -> bool:
    """Returns whether a sampler offers its epochs as a function: it has no generator, and no subclass overrides
    `__iter__` alone."""
    kind = type(sampler)
    if not offers(sampler, name) or asked(sampler, "generator") is not None:
        return False
    homes = [base for base in kind.__mro__ if "__iter__" in vars(base) or name in vars(base)]
    return bool(homes) and name in vars(homes[0])


class OrderOptions(Protocol):
    """The options by which epochs are numbered and divided: of a loader, and of the passes that it lends."""

    @property
    def seed(self) -> int | None:
        """Returns the option of `DataLoader`, like the other properties."""

    @property
    def distributed(self) -> Mode | None: ...
    @property
    def num_replicas(self) -> int | None: ...
    @property
    def rank(self) -> int | None: ...
    @property
    def batches_per_epoch(self) -> int | None: ...


def is_fixed(options: OrderOptions) -> bool:
    """Returns whether the epochs' seeds follow from numbers, and not from a generator."""
    return options.seed is not None or options.distributed is not None


def world_of(options: OrderOptions) -> ranks.World:
    """Returns the ranks that share the epoch: only this one without `distributed=`."""
    if options.distributed is None:
        return ranks.World(0, 1)
    if options.rank is not None and options.num_replicas is not None:
        return ranks.find((options.rank, options.num_replicas))
    return ranks.find()


def seed_of(options: OrderOptions, number: int) -> int:
    """Returns the seed of an epoch, from `seed=` or 0; all pieces of an endless order have the same one."""
    return mix(options.seed or 0, 0 if options.batches_per_epoch is not None else number) >> 1


def length_if_known(sized: Any) -> int | None:
    """Returns the length of an object, or None if its `__len__` raises, as that of an endless sampler may; only a call
    shows whether a wrapper has a length.
    """
    try:
        return len(sized)
    except Exception:  # torch asks for a length only in len(loader), where the error goes out
        return None


def length_of(options: LoaderOptions) -> int:
    """Returns the batches in an epoch of this rank.

    Raises:
        TypeError: the sampler has no length.
    """
    if options.batches_per_epoch is not None:
        return options.batches_per_epoch
    known = knower(options)
    # The length of a sampler that two loaders share follows the newer loader
    is_ours = isinstance(known, WalkedInEpochs) and is_computed(options)
    if is_ours or (options.distributed is not None and is_computed(options)):
        return _length_for(options, world_of(options))
    length: int = len(options.index_sampler)
    return length


def steps_of_all_ranks(options: LoaderOptions, resumed: Place | None) -> int:
    """Returns the remaining batches of an epoch on the rank that has most, the first one; 0 without `distributed=`."""
    if options.distributed is None:
        return 0
    place = resumed or START
    if options.batches_per_epoch is not None:
        return max(0, options.batches_per_epoch - place.batches)
    return _length_for(options, world_of(options)._replace(rank=0), place.position)


def _length_for(options: LoaderOptions, rank: ranks.World, begin: int = 0) -> int:
    known, batches = knower(options), options.batch_sampler
    share = len(RankSlice(len(known), begin, rank, options.distributed or "exact"))
    if batches is None or known is batches:
        return share
    return int(share // batches.batch_size if batches.drop_last else -(-share // batches.batch_size))


def resumed(
    options: LoaderOptions, epochs: EpochCounter, number: int, place: Place, tell: Callable[[str], None]
) -> Place:
    """Prepares a loader to begin epoch `number` at a place; returns that place for the loader's number of workers.

    Raises:
        StateFormatError: the loader has no such place: the state is damaged.
        StateMismatchError: the streams cannot be divided among this number of workers.
    """
    if options.is_stream and place.workers is None and place.batches:
        raise errors.StateFormatError("the state does not hold the states of the streams: it is truncated.")
    if place.through:
        place = going_on(place, max(1, options.num_workers))
    elif place.workers is not None:
        from stoker.loader._job.stream_sharding import read_again

        place = place._replace(workers=reshared(place.workers, max(1, options.num_workers)))
        again = sum(read_again(options.dataset, state) for state in place.workers or ())
        if again:
            tell(
                f"{type(options.dataset).__name__} cannot say where it stands: to resume it, its workers read "
                f"{again:,} samples again and throw them away. To save that, give it state_dict() and "
                "load_state_dict(state), or build it from stoker's streams."
            )
    end = None
    if options.batches_per_epoch is not None:
        left = max(0, options.batches_per_epoch - place.batches)
        end = place.position + _positions_in_piece(options, left)
    elif is_computed(options):
        length = length_if_known(knower(options))
        if length is not None and place.position > length:
            raise errors.StateFormatError(
                f"the state is damaged: it stands at position {place.position} of an order of {length}."
            )
        if place.position < place.batches or (place.position and not place.batches):
            raise errors.StateFormatError(
                f"the state is damaged: it stands at position {place.position} behind {place.batches} batches. Has a "
                "checkpoint mixed the states of several ranks?"
            )
    epochs.resume(options, number, place, end)
    return place


def check_seed(options: LoaderOptions, number: int, place: Place, kind: dict[str, Any]) -> None:
    """Raises StateFormatError if the seed in a state of this kind is that of another epoch than its number."""
    was_fixed = kind.get("seed") is not None or kind.get("distributed") is not None
    if was_fixed and is_fixed(options) and place.seed not in (None, seed_of(options, number)):
        raise errors.StateFormatError(
            f"the state is damaged: its seed is not that of epoch {number}. Has a checkpoint mixed the states of "
            "several ranks?"
        )


def check_shares(options: LoaderOptions) -> None:
    """Refuses orders that cannot be divided among ranks, or cut into pieces."""
    asked = {"distributed": options.distributed, "batches_per_epoch": options.batches_per_epoch}
    asked = {name: value for name, value in asked.items() if value is not None}
    if not asked:
        return
    arguments = ", ".join(f"{name}={value!r}" for name, value in asked.items())
    if not is_computed(options):
        if options.is_stream:
            way = "keep one iterator, from which each epoch takes itertools.islice(batches, n)"
            if options.distributed is not None:
                way = (
                    "give each rank a part of the data: dataset.shard(num_shards=ranks, index=rank) where the dataset "
                    "has that method, else other files or every n-th sample (see the guide on several GPUs)"
                )
            raise errors.SamplerError(
                f"{arguments} needs an order that is known by position, but {type(options.dataset).__name__} is a "
                f"stream, which can only be iterated from its start. Leave it out, and {way}."
            )
        sampler = options.index_sampler
        if isinstance(sampler, BatchSampler):
            sampler = sampler.sampler  # given by the user
        name, package = type(sampler).__name__, type(sampler).__module__.partition(".")[0]
        way = (
            f"Import it from stoker, whose {name} knows its order (`from stoker import {name}`)"
            if package == "torch" and name in samplers.__all__
            else "Leave it out and let that give each rank its share, or give the sampler a method order(key) (a batch "
            "sampler: batches(key)) and the class attribute stoker_protocol = True"
        )
        raise errors.SamplerError(
            f"{arguments} needs an order that is known by position, but the {name} ({package}) can only be iterated "
            f"from its start. {way}."
        )
    if options.batches_per_epoch is not None and has_function(options.batch_sampler, "batches"):
        raise errors.SamplerError(
            f"{arguments} cannot be used with {type(options.batch_sampler).__name__}, whose passes hold whole batches: "
            "iterate over its epochs one after the other."
        )
    if options.batches_per_epoch is not None and length_if_known(knower(options)) == 0:
        raise errors.SamplerError(f"{arguments} needs an order without end, but there are no samples.")
    if options.rank is not None:  # without rank= checked when an epoch begins, since the rank may not be known yet
        _check_something_is_left(options)


def _check_something_is_left(options: LoaderOptions) -> None:
    """Refuses an epoch in which every sample is left out."""
    if options.distributed is None:
        return
    known = knower(options)
    of = length_if_known(known)
    leaves_out = options.distributed == "drop" or asked(options.batch_sampler, "drop_last", False)
    if of and leaves_out and length_of(options) == 0:
        here = world_of(options)
        raise errors.SamplerError(
            f"distributed={options.distributed!r} leaves nothing for rank {here.rank} of {here.size} ({here.source}): "
            f"there are {of} to share out, and batch_size={options.batch_size}, drop_last={options.drop_last}. Use "
            "'pad' or 'exact' without drop_last, smaller batches, or fewer ranks."
        )
