"""`LoaderRecord`: a loader's data beside torch's attributes, in one private attribute.

No name of Stoker's can collide with an attribute, a property or a method of a subclass: the engine reads Stoker's
options from this record alone.
"""

from __future__ import annotations

import copy
import dataclasses
import warnings
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from stoker import collate, errors
from stoker._core.exceptions import users_level
from stoker._engine.fork.births import Births
from stoker._engine.timings import TimingSink
from stoker.device.buffers import DeviceBuffers
from stoker.device.copies import CopyCounts
from stoker.device.fields import FieldPlacement
from stoker.device.stage import DeviceStage
from stoker.loader._accounting.ledger import Ledger
from stoker.loader._autotune.hint import Hint
from stoker.loader._epoch.epoch_counter import EpochCounter, SilentEpochs
from stoker.loader._epoch.progress import Progress
from stoker.loader._job import jpeg_reader
from stoker.loader._options import argument_checks
from stoker.loader._options.loader_options import STOKERS, TORCHS, LoaderOptions
from stoker.loader._random.batch_transform import BatchTransform
from stoker.loader._state.schema import START, Place

if TYPE_CHECKING:
    from stoker.loader._autotune.controller import AutotuneController

NAME = "_stoker"
"""The attribute of a loader that holds its record."""


SKIPPED_AT_MOST = 10_000
"""Batches of an epoch that `skip()` leaves out."""


class LoaderRecord:
    """The private part of a loader. Used by the thread that iterates.

    Args:
        options: as the loader was made.
        auto: finds the number of workers, with `num_workers="auto"`.

    Attributes:
        epochs: counts the loader's epochs.
        progress: counts what the latest iterator has delivered.
        resumed: the place at which the next iterator begins, after `load_state_dict`.
        ledger: counts the samples of all epochs.
        told: texts of warnings and kinds of events that were already reported.
        hint: suggests workers once, with `num_workers=0`.
        latest: the latest iterator.
        timing_sink: receives the times of each batch; None for no timings. Set by a profiler before `iter(loader)`:
            workers that are there already measure nothing.
        sampled: whether the stacks of workers are sampled as well.
        is_compared: whether it was compared with the loaders of other ranks.
        is_gathered: whether a framework's checkpoints hold the states of all ranks, as `StokerCallback` gathers them.
        skipped: an epoch that has not begun, and the batches that `skip()` leaves out of it.
        drawn: names of the random generators that samples have drawn from.
        copies: counts the copies of batches to devices.
        births: keeps the template of the loader's clean workers.
        device_buffers: the fixed memory of batches on the device, from the first epoch with `device_buffers=` on.
        goes_on: whether the next iterator takes the place of one whose workers were kept, with another number of them:
            like that one it draws no seed.
    """

    goes_on = False  # of the class, as pickles of former versions lack it
    device_buffers: DeviceBuffers | None = None

    def __init__(self, options: LoaderOptions, auto: AutotuneController | None) -> None:
        self._made_with = options
        self.auto = auto
        self.epochs = EpochCounter()
        self.progress = Progress()
        self.resumed: Place | None = None
        self.ledger = Ledger()
        self.told: set[str] = set()
        self.hint = None if options.num_workers else Hint()
        self.latest: weakref.ref[Any] | None = None
        self.timing_sink: TimingSink | None = None
        self.sampled = False
        self.is_compared = False
        self.is_gathered = False
        self.skipped: tuple[int, frozenset[int]] | None = None
        self.drawn: tuple[str, ...] = ()
        self.copies = CopyCounts()
        self.births = Births()

    def device_stage(self, options: LoaderOptions, pins: bool) -> DeviceStage | None:
        """Returns the transfer of the next epoch's batches to devices; None if they stay on the host unseen."""
        if options.device is None:
            return None
        placement = FieldPlacement(options.device)
        if placement.is_of_host and not placement.names_fields:
            return None
        if options.device_buffers is not None and self.device_buffers is None:
            self.device_buffers = DeviceBuffers(options.device_buffers, self.tell_once)
        ahead = options.prefetch_to_device if options.num_workers else 0  # else the next batch is not made yet
        own = options.device_transform
        transform = None if own is None else BatchTransform.with_own_seeding(own)
        return DeviceStage(placement, ahead, self.tell_once, self.copies, pins, self.device_buffers, transform)

    def move_to(self, device: Any) -> None:
        """Sends batches to another device, from the next `iter()` on."""
        argument_checks.check_device(device, self._made_with.output, self._made_with.device_buffers)
        self._made_with = dataclasses.replace(self._made_with, device=device)

    def learn_drawn(self, names: Iterable[str]) -> None:
        """Records generators that samples have drawn from. Workers get them with their next units."""
        self.drawn = tuple(sorted({*self.drawn, *names}))

    def skip(self, batches: frozenset[int], is_stream: bool) -> None:
        """Leaves batches out of the next epoch, beside those left out of it already."""
        if is_stream:
            raise errors.SamplerError(
                "skip() needs batches with numbers, and those of a stream have none. Leave samples out in the stream: "
                "stoker.FilterDataset."
            )
        before = self.skipped[1] if self.skipped is not None and self.skipped[0] == self.epochs.begun else frozenset()
        if len(before | batches) > SKIPPED_AT_MOST:
            raise ValueError(
                f"skip() leaves out at most {SKIPPED_AT_MOST:,} batches of an epoch, because the state lists them, and "
                f"these are {len(before | batches):,}. To begin later, load a state of that place."
            )
        self.skipped = self.epochs.begun, before | batches

    def skipped_at(self, place: Place) -> frozenset[int]:
        """Returns the batches from a place of the next epoch on that `skip()` leaves out of it."""
        if self.skipped is None or self.skipped[0] != self.epochs.begun:
            return frozenset()
        return frozenset(number for number in self.skipped[1] if number >= place.batches)

    def take_skipped(self, place: Place) -> tuple[Place, frozenset[int]]:
        """Returns a place of the epoch that begins now, and its batches to be left out, which are part of the place."""
        skipped, self.skipped = self.skipped_at(place), None
        return place._replace(ahead=place.ahead | skipped), skipped

    def options(self, loader: Any) -> LoaderOptions:
        """Returns the options as they are now: torch's attributes may have been set since the loader was made."""
        own = {name: getattr(loader, name) for name in TORCHS}
        own["num_workers"] += self.remote_workers
        return dataclasses.replace(
            self._made_with,
            **own,
            is_stream=bool(loader._dataset_kind),
            auto_collation=loader._auto_collation,
            index_sampler=loader._index_sampler,
            reported_length=loader._IterableDataset_len_called,
        )

    @property
    def remote_workers(self) -> int:
        """Returns the number of workers on other machines."""
        remote = self._made_with.remote
        return 0 if remote is None else remote.num_workers

    def follow_torch(self, images: bool) -> None:
        """Makes the loader do what torch's does and no more: no `set_epoch` is called, nothing is suggested.

        Samples that this process makes draw from its generators, because torch's order may follow from them.

        Args:
            images: whether processes that make samples, this one too, read JPEGs by Stoker's reader.
        """
        options = dataclasses.replace(
            self._made_with,
            shard="torch",
            jpegs="everywhere" if images else "nowhere",
            prefetch_is_given=False,  # torch's class stores its default
        )
        if not options.capabilities.own_process:
            options = dataclasses.replace(options, seeding="worker")
        if not collate.is_default(collate.for_output(options.collate_fn, options.output)):
            options = dataclasses.replace(options, concurrency=0)  # the script's own function may await the samples
        self._made_with = options
        self.epochs, self.hint = SilentEpochs(), None

    def try_with(self, threads: int) -> None:
        """Gives the loader another number of threads for each worker, and no automatic number of workers.

        A measurement of several settings calls it, between two epochs.
        """
        self._made_with, self.auto = dataclasses.replace(self._made_with, threads_per_worker=threads), None

    def snapshot_every(self, batches: int) -> None:
        """Sets the batches from one state of a worker's stream to the next, if its states cost much."""
        self._made_with = dataclasses.replace(self._made_with, snapshot_every=batches)

    @property
    def own_sampler(self) -> Any:
        """Returns the sampler that the loader made because none was given, else None."""
        return self._made_with.own_sampler

    def own(self) -> dict[str, Any]:
        """Returns Stoker's own options by name, as the loader was made."""
        return {name: getattr(self._made_with, name) for name in STOKERS}

    def automatic(self, loader: Any) -> AutotuneController | None:
        """Returns the controller of the number of workers, unless the script has set `num_workers` meanwhile."""
        if self.auto is not None and not self.auto.obeyed(loader):
            self.auto = None
        return self.auto

    def find_workers(self, loader: Any, order: str, rebuilds: bool) -> str | None:
        """Finds the number of a loader's workers while the program runs. Returns why not if its batches depend on it.

        Args:
            loader: the loader.
            order: of `install`, "stoker" or "torch".
            rebuilds: whether each worker unpickles the dataset.
        """
        from stoker.loader._autotune.behind_torch import why_kept
        from stoker.loader._autotune.controller import AutotuneController

        if (why := why_kept(self.options(loader), order, rebuilds)) is None:
            self.auto = AutotuneController(least=loader.num_workers)
            loader.num_workers = self.auto.most
        return why

    def prepare(self, loader: Any) -> None:
        """Decides with how many workers the iterator that is about to be made begins."""
        if (auto := self.automatic(loader)) is not None:
            auto.prepare(loader, self.options(loader))

    def obey_set_epoch(self) -> None:
        """Forgets a loaded state if `set_epoch` asks for another epoch."""
        if self.epochs.moved and self.resumed is not None:
            self.resumed, self.progress = None, Progress()

    def tell_once(self, text: str) -> None:
        """Warns, unless this loader has warned so before."""
        if text not in self.told:
            self.told.add(text)
            warnings.warn(text, errors.StokerWarning, stacklevel=users_level())

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({"copies": CopyCounts(), **state, "births": Births()})  # a pickle of before has no copies

    def __getstate__(self) -> dict[str, Any]:
        # A copy in another process counts and measures for itself, from the start of this one's next epoch
        own = {
            "progress": Progress(self.resumed or START),
            "ledger": Ledger(),
            "latest": None,
            "copies": CopyCounts(),
            "device_buffers": None,
            "timing_sink": None,
            "sampled": False,
        }
        own["auto"] = None if self.auto is None else self.auto.copy()
        state = {**self.__dict__, **own}
        state.pop("births", None)
        return state

    def __copy__(self) -> LoaderRecord:
        other = object.__new__(LoaderRecord)
        other.__dict__.update(self.__getstate__(), epochs=copy.copy(self.epochs), births=Births())
        return other


class IteratedLoader(Protocol):
    """What an iterator reads of its loader; all else is in the loader's record."""

    num_workers: int


def record_of(loader: Any) -> LoaderRecord:
    """Returns the record of a loader."""
    record: LoaderRecord = vars(loader)[NAME]
    return record


def options_of(loader: Any) -> LoaderOptions:
    """Returns the options of a loader as they are now."""
    return record_of(loader).options(loader)


def time_batches(loader: Any, sink: TimingSink | None, stacks: bool = False) -> TimingSink | None:
    """Takes the times of each batch of a loader from its next `iter()` on; returns the sink before.

    Workers that are there already, persistent ones, measure nothing: call `loader.close()` before.

    Args:
        loader: a loader of Stoker's.
        sink: called in the trainer with the times of each batch, before the training loop has the batch; None ends the
            measurement.
        stacks: whether the stacks of workers are sampled as well.
    """
    record = record_of(loader)
    before, record.timing_sink, record.sampled = record.timing_sink, sink, stacks
    return before


def leave_jpegs_to_pillow() -> None:
    """Gives Pillow its own reader back in this process, which loaders that follow torch's may have replaced."""
    jpeg_reader.unregister()
