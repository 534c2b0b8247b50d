"""Stoker's loaders under Hugging Face Accelerate: its sharing out of batches, Stoker's engine and states.

    from stoker.integrations.accelerate import prepare

    network, optimizer = accelerator.prepare(network, optimizer)
    loader = prepare(accelerator, stoker.DataLoader(dataset, 32, shuffle=True, seed=0, num_workers=4))

The rest of a training script stays as it is.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from stoker import errors
from stoker.extend import state_for_all_ranks
from stoker.loader.dataloader import DataLoader
from stoker.loader.loader_kind import has_known_order, state_after
from stoker.loader.record import options_of, record_of
from stoker.samplers.batch import BatchSampler
from stoker.samplers.order import BatchOrder, Order

if TYPE_CHECKING:
    from accelerate import Accelerator


try:
    import torch
    from accelerate import skip_first_batches as _skip_first_batches
    from accelerate.data_loader import BatchSamplerShard, DataLoaderDispatcher, DataLoaderShard, SeedableRandomSampler
    from accelerate.utils import gather_object
except ImportError as error:
    raise errors.MissingExtraError(
        f"stoker.integrations.accelerate needs Accelerate, which cannot be imported ({error}): install the extra "
        "stoker[accelerate]."
    ) from error


SEED = "seedable_sampler_seed"
"""Key of a state, beside Stoker's: the seed of Accelerate's seedable sampler."""


def prepare(
    accelerator: Accelerator, loader: Any, *, device_placement: bool | None = None, slice_fn_for_dispatch: Any = None
) -> Any:
    """Returns the loader as `accelerator.prepare` would, with Stoker's engine and exact resume beneath.

    The samples of each step and rank are those of Accelerate (`split_batches`, `even_batches`, `dispatch_batches`,
    `gather_for_metrics`, meshes), except that `even_batches` may repeat other samples at the end of an epoch. The
    loader's state becomes part of `accelerator.save_state` and `load_state`: rank 0 writes it, every rank loads it, and
    the next iteration continues right after the last batch received. No batch is read again to skip it.

    With `seed=` the order follows from seed and epoch: any position is found in constant time, also with another number
    of ranks. Without it, the order is Accelerate's, from its synchronised generator or its seedable sampler, and a
    resume walks that sampler's indices.

    Args:
        accelerator: every rank calls `save_state` and `load_state`, as Accelerate requires.
        loader: a Stoker loader; a torch loader, which is taken over as by `DataLoader.from_torch`; or a loader that
            this accelerator has prepared from one of torch's.
        device_placement: as `Accelerator.prepare_data_loader`, like the next argument.
        slice_fn_for_dispatch: cuts a dispatched batch.

    Raises:
        ValueError: a loader with `distributed=`, whose samples would be shared out twice, or a `split_batches` that
            does not fit.
        TypeError: no loader, or one whose class chooses the batches by methods of its own.
    """
    if type(loader) in (PreparedShard, PreparedDispatcher):
        return loader
    if type(loader) in (DataLoaderShard, DataLoaderDispatcher):
        theirs = loader
        loader = DataLoader.from_torch(theirs.base_dataloader)
        is_walked = True
    else:
        loader = loader if isinstance(loader, DataLoader) else DataLoader.from_torch(loader)
        if options_of(loader).distributed is not None:
            raise ValueError(
                f"the loader has distributed={options_of(loader).distributed!r}, and Accelerate shares each epoch out "
                "among the ranks too: leave distributed= out of a loader that is prepared."
            )
        theirs, is_walked = _prepared_by_accelerate(accelerator, loader, device_placement, slice_fn_for_dispatch)
    mine = PreparedDispatcher if isinstance(theirs, DataLoaderDispatcher) else PreparedShard
    ours: Any = object.__new__(mine)
    ours.__dict__.update(vars(theirs))
    if mine is PreparedDispatcher:
        reads = theirs.state.process_index == 0
        ours.base_dataloader = loader if reads else DataLoader.from_torch(loader, num_workers=0)
    else:
        ours.base_dataloader = _sharing(loader, theirs, is_walked)
    ours._begin_states()
    ours._is_accelerate_prepared = True
    kept = accelerator._dataloaders
    kept[next(place for place, other in enumerate(kept) if other is theirs)] = ours
    accelerator.register_for_checkpointing(Checkpointed(ours))
    return ours


def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
    """Returns the loader so that its next iteration begins after `num_batches`; as Accelerate's function of this name.

    A prepared loader whose order follows from `seed=` goes there in constant time, and one with a loaded state is there
    already: neither reads anything. Any other loader goes to Accelerate's function.
    """
    if isinstance(dataloader, (PreparedShard, PreparedDispatcher)) and dataloader._can_skip(num_batches):
        return dataloader
    return _skip_first_batches(dataloader, num_batches)


def _prepared_by_accelerate(
    accelerator: Accelerator, loader: DataLoader[Any], device_placement: bool | None, slice_fn: Any
) -> tuple[Any, bool]:
    """Returns Accelerate's loader around torch's, and whether its samplers give the order, and not those of Stoker."""
    sampler = getattr(loader.batch_sampler, "sampler", None)
    is_walked = options_of(loader).seed is None or not has_known_order(options_of(loader))
    theirs = accelerator.prepare_data_loader(loader, device_placement, slice_fn)
    if is_walked:
        return theirs, True
    if sampler is not None:  # the order is Stoker's, whatever generator or sampler Accelerate has put in its place
        loader.batch_sampler.sampler = sampler
        if getattr(theirs, "synchronized_generator", None) is not None:
            sampler.generator = theirs.synchronized_generator = None
            theirs.rng_types = [kind for kind in theirs.rng_types or () if str(kind) != "generator"]
    return theirs, False


def _sharing(loader: DataLoader[Any], theirs: Any, is_walked: bool) -> DataLoader[Any]:
    """Returns the Stoker loader of one rank, which gives the batches that Accelerate's loader would give."""
    if loader.dataset is not theirs.dataset:  # a stream, of which Accelerate gives each rank its part
        return DataLoader.from_torch(loader, dataset=theirs.dataset, batch_size=theirs.base_dataloader.batch_size)
    whole: dict[str, Any] = {"batch_size": 1, "shuffle": None, "sampler": None, "drop_last": False}
    if isinstance(theirs.sampler, BatchSamplerShard):  # as the sampler of a loader that does not batch
        whole |= {"batch_size": None, "sampler": theirs.sampler, "batch_sampler": None}
        return loader if theirs.sampler is loader.sampler else DataLoader.from_torch(loader, **whole)
    batches = theirs.batch_sampler
    if not isinstance(batches, BatchSamplerShard) or batches is loader.batch_sampler:
        return loader
    if is_walked:
        return DataLoader.from_torch(loader, batch_sampler=batches, **whole)
    shared = SharedBatches(
        batches.batch_sampler,
        num_processes=batches.num_processes,
        process_index=batches.process_index,
        split_batches=batches.split_batches,
        even_batches=batches.even_batches,
    )
    ranks = {"num_replicas": shared.num_processes, "rank": shared.process_index}
    return DataLoader.from_torch(loader, batch_sampler=shared, distributed=shared.mode, **ranks, **whole)


class _Prepared:
    """What both kinds of prepared loaders add to Accelerate's: a state of Stoker's, right after each batch given."""

    base_dataloader: DataLoader[Any]
    iteration: int
    end_of_dataloader: bool
    dl_state_dict: dict[str, Any]

    def _begin_states(self) -> None:
        self._skip = 0
        self.use_stateful_dataloader = False  # else Accelerate writes the state too, from all ranks into one file
        if (sampler := self._seedable()) is not None and sampler.generator is None:
            sampler.generator = torch.Generator()  # now, and not in the first epoch: the sampler seeds it in each
        self._take_state()

    def _take_state(self) -> None:
        self.dl_state_dict = self.base_dataloader.state_dict()
        if (sampler := self._seedable()) is not None:
            self.dl_state_dict[SEED] = sampler.initial_seed

    def _seedable(self) -> Any:
        """Returns Accelerate's sampler whose order follows from a seed and the epoch, if it is in use."""
        batches = getattr(self.base_dataloader, "batch_sampler", None)
        sampler = getattr(getattr(batches, "batch_sampler", batches), "sampler", None)
        return sampler if isinstance(sampler, SeedableRandomSampler) else None

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of this rank right after the last batch that the training loop has received."""
        return self.dl_state_dict

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Makes the next iteration continue from a state; reads nothing.

        Raises:
            StateError: as `DataLoader.load_state_dict`.
        """
        self.base_dataloader.load_state_dict(state_dict)
        self.iteration = state_dict["epoch"]
        if (sampler := self._seedable()) is not None and SEED in state_dict:
            sampler.initial_seed = state_dict[SEED]
        self._take_state()

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the next one; a loaded state of that epoch stays in force."""
        super().set_epoch(epoch)  # type: ignore[misc]  # of Accelerate's class
        if options_of(self.base_dataloader).seed is not None:
            self.base_dataloader.set_epoch(epoch)

    def _can_skip(self, count: int) -> bool:
        """Returns whether the next iteration begins after `count` steps of its epoch, without reading anything."""
        base = self.base_dataloader
        if record_of(base).resumed is not None and self.dl_state_dict["batches"] == count * self._batches_a_step():
            return True
        if options_of(base).seed is None or not has_known_order(options_of(base)):
            return False
        self._skip = count
        return True

    def __iter__(self) -> Iterator[Any]:
        """Begins an epoch, or continues it from a loaded state or after batches to skip."""
        if self._skip:  # now, because the number of the epoch may be set after `skip_first_batches`
            batches, self._skip = self._skip * self._batches_a_step(), 0
            self.load_state_dict(state_after(self.base_dataloader, self.iteration, batches))
        return super().__iter__()  # type: ignore[misc, no-any-return]

    def forget_draws(self) -> None:
        """Forgets numbers of the next epoch that a state was given ahead of their draw: the generators were set."""
        record_of(self.base_dataloader).epochs.coming = None
        if self.end_of_dataloader:
            self._take_state()

    def _batches_a_step(self) -> int:
        return 1


class PreparedShard(_Prepared, DataLoaderShard):  # type: ignore[misc]  # Accelerate ships no types
    """Accelerate's loader of one rank, on Stoker's engine.

    Accelerate asks for a state before it fetches the batch after the one that it gives.
    """

    def _update_state_dict(self) -> None:
        self._take_state()


class PreparedDispatcher(_Prepared, DataLoaderDispatcher):  # type: ignore[misc]
    """Accelerate's loader that reads on rank 0 and sends each rank its part, on Stoker's engine.

    Accelerate fetches the n batches of the next step before it gives this one, and asks for a state before each of
    them. The first of these states is the one after this step: it is kept, and nothing has to be corrected.
    """

    _has_asked = False

    def _fetch_batches(self, iterator: Any) -> Any:
        self._has_asked = False
        return super()._fetch_batches(iterator)

    def _update_state_dict(self) -> None:
        if self.end_of_dataloader or not self._has_asked:
            self._has_asked = True
            self._take_state()

    def _batches_a_step(self) -> int:
        return 1 if self.split_batches else int(self.state.num_processes)


class Checkpointed:
    """A prepared loader among the objects that `save_state` writes, from the main process, and `load_state` reads.

    Ranks with an order in common have the same state, and a dispatcher reads on rank 0 alone, so that one state is
    enough. Ranks that read parts of a stream are asked for one each.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = weakref.ref(loader)

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of the ranks, in their order, or one for all; every rank has to call it."""
        loader = self._loader()
        if loader is None:
            return {"ranks": []}
        state = loader.state_dict()
        has_parts = isinstance(loader, PreparedShard) and options_of(loader.base_dataloader).is_stream
        return {"ranks": gather_object([state]) if has_parts else [state_for_all_ranks(state)]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads this rank's state.

        Raises:
            StateMismatchError: a stream was read by another number of ranks.
        """
        from accelerate import PartialState

        loader, states = self._loader(), state_dict["ranks"]
        if loader is None or not states:
            return
        here = PartialState()
        if len(states) not in (1, here.num_processes):
            raise errors.StateMismatchError(
                f"the checkpoint holds the parts of a stream that {len(states)} ranks have read, and there are "
                f"{here.num_processes} ranks: continue with {len(states)}, or use dispatch_batches=True, whose state "
                "does not depend on their number."
            )
        loader.load_state_dict(states[here.process_index if len(states) > 1 else 0])


class SharedBatches(BatchSampler):
    """The batches of all ranks, by number; the loader gives rank r of n batches r, r + n, ...

    Its attributes are those of Accelerate's `BatchSamplerShard`, from which Accelerate computes the size of a step.

    Args:
        batch_sampler: Stoker's, whose epochs are a function of a key.
        num_processes: number of ranks.
        process_index: this rank.
        split_batches: whether a batch of `batch_sampler` is that of all ranks, and not of one.
        even_batches: whether all ranks get the same number of full batches; samples come twice for that.

    Raises:
        ValueError: `split_batches` with batches that cannot be split evenly.
    """

    stoker_protocol = True

    def __init__(
        self, batch_sampler: Any, num_processes: int, process_index: int, split_batches: bool, even_batches: bool
    ) -> None:
        self.batch_sampler = batch_sampler
        self.sampler: Any = getattr(batch_sampler, "sampler", None)
        self.num_processes = num_processes
        self.process_index = process_index
        self.split_batches = split_batches
        self.even_batches = even_batches
        self.batch_size = getattr(batch_sampler, "batch_size", None)  # type: ignore[assignment]  # None if they differ
        self.drop_last = bool(getattr(batch_sampler, "drop_last", False))
        if split_batches and not (self._is_plain and self.batch_size % num_processes == 0):
            raise ValueError(
                f"split_batches=True needs batches of a fixed size that {num_processes} ranks divide evenly, but "
                f"{type(batch_sampler).__name__} has batch_size={self.batch_size}: use another batch_size, or "
                "split_batches=False."
            )

    @property
    def mode(self) -> Literal["pad", "drop", "exact"]:
        """Returns the treatment of a last round that does not divide evenly, as in `distributed=`."""
        return "drop" if self.drop_last else "pad" if self.even_batches else "exact"

    @property
    def _is_plain(self) -> bool:
        return type(self.batch_sampler) is BatchSampler

    @property
    def _size(self) -> int:
        return self.batch_size // self.num_processes if self.split_batches else self.batch_size

    @property
    def total_length(self) -> int:
        """Returns the number of batches of the sampler that is shared out."""
        return len(self.batch_sampler)

    def __len__(self) -> int:
        """Returns the number of batches of all ranks together, before any is repeated."""
        if not self._is_plain:
            return len(self.batch_sampler)
        count = len(self.sampler)  # a sampler whose order is a function has a length
        return count // self._size if self.drop_last else -(-count // self._size)

    def batches(self, key: int) -> BatchOrder:
        """Returns the epoch that belongs to `key`: the one that the loader would have alone."""
        if not self._is_plain:
            known: BatchOrder = self.batch_sampler.batches(key)
            return known
        return _CutOrder(self.sampler.order(key), self._size, len(self), self.even_batches)


class _CutOrder:
    """An order cut into batches; a `BatchOrder`."""

    def __init__(self, order: Order, size: int, count: int, is_even: bool) -> None:
        self._order = order
        self._size = size
        self._count = count
        self._is_even = is_even

    def __len__(self) -> int:
        return self._count

    def batch(self, number: int) -> list[int]:
        """Returns the indices of a batch; the last one, if it is to be even, is filled with the epoch's first ones."""
        places = np.arange(number * self._size, (number + 1) * self._size, dtype=np.int64)
        places = places % len(self._order) if self._is_even else places[places < len(self._order)]
        indices: list[int] = self._order.take(places).tolist()
        return indices

    def position(self, number: int) -> int:
        return number * self._size
