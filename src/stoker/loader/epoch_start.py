"""The start of an epoch: its place, its random numbers and the walk over its sampler, in the order of torch's draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.datasets import declared
from stoker.loader._epoch import epoch
from stoker.loader._epoch.draws import EpochSeed
from stoker.loader._epoch.progress import Progress
from stoker.loader._epoch.sampler_walk import SamplerWalk
from stoker.loader._job import datapipes
from stoker.loader._state.resharding import going_on, reshared
from stoker.loader._state.schema import START, Place

if TYPE_CHECKING:
    from stoker.loader._epoch.epoch_counter import Coming
    from stoker.loader._epoch.plan import StreamedPlan
    from stoker.loader._options.loader_options import LoaderOptions
    from stoker.loader.record import LoaderRecord


class EpochStart:
    """An epoch between `iter()`, when its seed is drawn, and its first `next()`, which decides it.

    Args:
        options: of the loader at `iter()`.
        record: of the loader.
        first: whether it is the first epoch of its workers: for later ones torch draws no seed.

    Attributes:
        progress: counts the batches of the epoch that the user has received.
        walked: the plan of a walked sampler, once the walk has begun; else None.
        set_epoch: the argument of the dataset's `set_epoch` in workers; None for no call.
    """

    def __init__(self, options: LoaderOptions, record: LoaderRecord, first: bool) -> None:
        self._options, self._record = options, record
        self._meanwhile = options.num_workers > 0
        place, epochs = record.resumed or START, record.epochs
        if place.through:
            place = going_on(place, max(1, options.num_workers))
        elif place.workers is not None:  # the number of workers may have changed since it was loaded
            place = place._replace(workers=reshared(place.workers, max(1, options.num_workers)))
        self.set_epoch = epochs.announce(options)
        coming, epochs.coming = epochs.coming, None
        if first:
            epochs.root = None
        if coming is not None and coming.epoch != epochs.begun:
            coming = None
        if place.before is not None:
            declared.put_back(options.dataset, place.before)
        self._numbers = self._new_numbers(place, coming)
        if datapipes.is_iter(options.dataset):  # torch draws the seed of a DataPipe's random numbers first
            self._numbers.draw_order()
        self._start_walk(place, first)
        self._numbers.draw_seed()
        if options.persistent_workers and options.num_workers and not self._numbers.is_fixed:
            if place.root is not None:
                epochs.root = place.root
            elif first:
                epochs.root = self._numbers.seed
        # Without workers, or with those of the epoch before, its datasets go on
        goes_on = options.is_stream and record.resumed is None and record.progress.is_over
        ended = record.progress if goes_on and not (first and self._meanwhile) else None
        self.progress = record.progress = Progress(self._place, self._walk, self._numbers, ended)

    def _new_numbers(self, place: Place, coming: Coming | None) -> EpochSeed:
        epochs = self._record.epochs
        if self._options.batches_per_epoch is not None and place.seed is None:
            place = place._replace(seed=epochs.seed)
        return EpochSeed(self._options, place, epochs.root, coming)

    def _start_walk(self, place: Place, first: bool) -> None:
        """Begins a pass over a walked sampler."""
        options = self._options
        self._walk: SamplerWalk | None = None
        self.walked: StreamedPlan | None = None
        self._place = place
        if options.is_stream or epoch.is_computed(options):
            return

        def begins_twice() -> None:  # torch makes an iterator, draws the seed, and makes another for its workers
            iter(options.index_sampler)
            self._numbers.draw_seed()

        twice = first and options.num_workers > 0 and self._numbers.needs_seed
        self._walk = SamplerWalk(options.index_sampler, options.dataset, place, begins_twice if twice else None)
        self._place = self._walk.place

    def draw_ahead(self) -> None:
        """Makes the draws that torch's loader makes at `iter()` to have indices for its workers."""
        if not self._meanwhile:
            return
        self._numbers.draw_order()
        if self._walk is not None and not self._place.batches:
            self._walk_ahead(self._walk)

    def _walk_ahead(self, walk: SamplerWalk) -> None:
        self.walked = epoch.walked(self._options, walk)
        self.walked.forward(self._place.batches)
        self.walked.walk((self._options.prefetch_factor or 1) * self._options.num_workers)

    def obey_set_epoch(self) -> None:
        """Starts anew if `set_epoch` was called since `iter()`, as Lightning calls it."""
        epochs = self._record.epochs
        if not epochs.moved:
            return
        self.set_epoch = epochs.announce(self._options)
        if self._place.is_decided:  # the loaded state is of another epoch
            self._numbers = self._new_numbers(START, None)
            self._start_walk(START, first=False)
            self._numbers.draw_seed()
        elif self._walk is None:
            self._place = START
        elif self.walked is not None:
            self._start_walk(START, first=False)

    def decided(self) -> epoch.Epoch:
        """Returns the epoch. Its number may change until then."""
        epochs, options = self._record.epochs, self._options
        self._numbers.draw_order()
        if self._walk is not None and self.walked is None:
            if self._meanwhile:
                self._walk_ahead(self._walk)
            else:
                self.walked = epoch.walked(options, self._walk)
        place = self._place
        if options.batches_per_epoch is not None and place.seed is None:
            place = epoch.start(options, epochs, epochs.begun)._replace(ahead=place.ahead)
        self._place, skipped = self._record.take_skipped(self._place)
        place = self._numbers.at(place._replace(ahead=place.ahead | skipped), epochs.begun)
        begun = epoch.begin(options, epochs, self.walked, epochs.begun, place)
        return begun._replace(root=epochs.root) if options.persistent_workers and self._meanwhile else begun

    def begun(self, begun: epoch.Epoch) -> None:
        """Counts the epoch as begun, and warns of one without a batch."""
        if self._walk is None and self._options.own_sampler is not None and not self._options.is_stream:
            self._warn_of_none()
        self._record.epochs.begun += 1
        streams = max(1, self._options.num_workers) if self._options.is_stream else 0
        self.progress.begin(begun, self._walk, streams)

    def _warn_of_none(self) -> None:
        """Warns, once for each loader, if the epoch has no batch."""
        options = self._options
        if epoch.length_of(options):
            return
        number, ranks = len(options.dataset), epoch.world_of(options).size
        why = f"the dataset has {number:,} samples"
        if number and options.drop_last:
            why += f", and drop_last=True leaves out a batch of fewer than {options.batch_size:,} (batch_size)"
        if number and ranks > 1:
            why += f", shared by {ranks} ranks"
        self._record.tell_once(f"the epoch has no batch: {why}.")
