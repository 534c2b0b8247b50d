"""The indices of any batch, of any epoch and rank, computed from the order: nothing is walked or fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker._core.protocol import asked
from stoker.errors import SamplerError
from stoker.loader._epoch import epoch as epochs_
from stoker.loader._epoch import ranks
from stoker.loader._options import argument_checks
from stoker.loader._state.schema import Place

if TYPE_CHECKING:
    from stoker.loader._epoch.epoch_counter import EpochCounter
    from stoker.loader._epoch.progress import Progress
    from stoker.loader._options.loader_options import LoaderOptions


def batch_indices(
    options: LoaderOptions,
    epochs: EpochCounter,
    progress: Progress,
    resumed: Place | None,
    number: int,
    k: int,
    rank: int | None,
) -> list[Any]:
    """Returns the indices of batch `k` of epoch `number`, as `DataLoader.batch_indices` describes.

    Args:
        options: of the loader.
        epochs: counts its epochs.
        progress: of its latest iterator.
        resumed: the place of a loaded state, in epoch `epochs.begun`.
        number: of the epoch.
        k: of the batch.
        rank: whose batch; None for this one.
    """
    number, k = argument_checks.count("epoch", number), argument_checks.count("k", k)
    _check_is_computed(options)
    here = _world(options, rank)
    seed, place = _begin_of(options, epochs, progress, resumed, number)
    first = epochs_.start(options, epochs, number)._replace(order=place.order)
    if k < place.batches:
        _, share, size = epochs_.computed(options, seed, first, here)
        if share.global_position(place.batches, size) != place.position:
            raise SamplerError(
                f"batch {k} of epoch {number} was made by a run with another number of ranks or another batch size: "
                f"this run has continued after batch {place.batches - 1}. Ask a loader with the settings of that run."
            )
        place = first
    plan, _, _ = epochs_.computed(options, seed, place, here)
    step = plan.step(k - place.batches)
    if step is None:
        of_rank = f" on rank {here.rank} of {here.size}" if here.size > 1 else ""
        raise IndexError(f"epoch {number} has no batch {k}{of_rank}: they are counted from 0, and there are too few")
    return list(step.indices) if options.auto_collation else [step.indices]


def _check_is_computed(options: LoaderOptions) -> None:
    """Refuses orders that are not a function of a number."""
    if options.is_stream:
        raise SamplerError(
            f"the batches of a stream ({type(options.dataset).__name__}) cannot be computed: each is known when it is "
            "read. A dataset with indices (__getitem__ and __len__) has an order."
        )
    if not epochs_.is_computed(options):
        sampler = options.index_sampler
        inner = asked(sampler, "sampler", sampler)
        raise SamplerError(
            f"the order of {type(inner).__name__} can only be iterated from its start, with its generators as they "
            "were then. Leave the sampler out (shuffle=True), or import it from stoker."
        )


def _world(options: LoaderOptions, rank: int | None) -> ranks.World:
    here = epochs_.world_of(options)
    if rank is None:
        return here
    if not 0 <= argument_checks.count("rank", rank) < here.size:
        raise ValueError(f"rank is {rank}, and there are {here.size} ranks ({here.source}), counted from 0")
    return here._replace(rank=rank)


def _begin_of(
    options: LoaderOptions, epochs: EpochCounter, progress: Progress, resumed: Place | None, number: int
) -> tuple[int, Place]:
    """Returns the seed of an epoch, and the place at which this loader began it, or would begin it."""
    current = progress.epoch
    if current is not None and current.number == number:
        return current.seed, current.place
    if resumed is not None and resumed.seed is not None and epochs.begun == number:
        return resumed.seed, resumed
    if not epochs_.is_fixed(options):
        known = f"epoch {current.number}" if current is not None else "none"
        raise SamplerError(
            f"the order of epoch {number} is not known: its seed is drawn when it begins ({known} is known now). "
            "Pass seed=0 to the loader, and each epoch follows from its number; or load the state of that run first."
        )
    return epochs_.seed_of(options, number), epochs_.start(options, epochs, number)
