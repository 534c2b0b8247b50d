"""Counts a loader's epochs, and keeps them in step with objects that offer `set_epoch`."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

from stoker._core.protocol import asked, follows, offers
from stoker.loader._options import argument_checks
from stoker.loader._state.schema import Place
from stoker.samplers.batch import BatchSampler
from stoker.samplers.passes import WalkedInEpochs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stoker.loader._options.loader_options import LoaderOptions

_MOST_PARTS = 256  # items of a list that are examined


class Coming(NamedTuple):
    """Numbers that `state_dict()` has found ahead of their draw, and the states of their generators then."""

    epoch: int
    seed: int | None
    order: int | None
    stood: tuple[Any, ...]


class EpochCounter:
    """Numbers the epochs of a loader, across its iterators. With `batches_per_epoch`, they are pieces of one endless
    order.

    Attributes:
        begun: number of epochs that have begun, which is the number of the next.
        moved: whether `set_epoch` has, since the latest `iter()`, asked for an epoch other than the next.
        seed: of the endless order, once it is decided.
        root: seed from which the seeds of all epochs of the current persistent workers follow.
        coming: numbers that `state_dict()` has found ahead for the next epoch.
    """

    def __init__(self) -> None:
        self.begun = 0
        self.moved = False
        self.seed: int | None = None
        self.root: int | None = None
        self.coming: Coming | None = None
        self._resumed: int | None = None  # number of the epoch of a loaded state, until `set_by_others`
        self._others = 0  # by how much our number was ahead of the others' when they began
        self._uncounted = 0  # passes of ours beyond that, which the others have not counted
        self._last: int | None = None  # latest number from `set_by_others`
        self._pass = 0  # number of the epoch that the next foreign pass over our sampler yields
        self._origin = (0, 0)  # (number, position) after which all pieces have one length
        self._left: dict[str, int | None] = {}  # name of a holder of set_epoch → the epoch that we left there
        self._scripts: frozenset[str] = frozenset()  # names of holders whose set_epoch the script calls
        self._ahead: dict[str, int] = {}  # by how much foreign code has set a holder ahead of our number

    def piece(self, number: int, length: int) -> Place:
        """Returns the start of a piece of the endless order, if all pieces have this length."""
        return Place(seed=self.seed, position=max(0, self._origin[1] + (number - self._origin[0]) * length))

    def set_by_others(self, number: int) -> None:
        """Follows a call of a sampler's `set_epoch` by a framework that counts epochs itself.

        If the framework begins below the epoch of a loaded state, it counts the epochs of this run (Lightning's
        Fabric). One epoch of the framework may hold several passes of the loader (Lightning's `CombinedLoader`, until
        the longest of its loaders has ended): when the framework counts on, none of these passes is repeated. The
        framework's latest number, or a lower one, goes back.
        """
        number = argument_checks.count("epoch", number)
        if self._resumed is not None:
            self._others, self._resumed = max(0, self._resumed - number), None
        if self._last is None or number < self._last:
            self._uncounted = 0
        elif number > self._last:
            self._uncounted = max(self._uncounted, self.begun - number - self._others)
        self._last = number
        self._set(number + self._others + self._uncounted)

    def set_epoch(self, options: LoaderOptions, number: int) -> None:
        """Makes `number` the next epoch, also of the next foreign pass over the sampler."""
        number = argument_checks.count("epoch", number)
        self._others, self._resumed, self._last = 0, None, None
        self._ahead = {name: ahead for name, ahead in self._ahead.items() if name not in self._scripts}
        self._set(number)
        self._find(options)

    def _set(self, number: int) -> None:
        if number != self.begun:
            self.moved, self.coming = True, None
        self.begun = self._pass = number

    def passed(self, number: int) -> None:
        """Records that the loader itself has begun epoch `number`."""
        self._pass = number + 1

    def next_pass(self) -> int:
        """Returns the number of the epoch for a foreign pass over the sampler. The loader's epochs do not change."""
        self._pass += 1
        return self._pass - 1

    def announce(self, options: LoaderOptions) -> int | None:
        """Calls `set_epoch` of the dataset and the samplers that offer it; returns the dataset's epoch, or None.

        An epoch in such an object that differs from the one that Stoker left was set by the script, and is kept. If the
        class follows Stoker's protocol, Stoker counts on from it. In any other class (a `DistributedSampler`, a
        library's stream) the script then sets the epoch, as with torch's loader, until a state is loaded or
        `set_epoch` of the loader is called.
        """
        value = None
        self._pass, self.moved = self.begun, False
        for name, holder in _holders(options):
            now, left = _epoch_of(holder), self._left.get(name, 0)
            if now is not None and (now != left or type(now) is not type(left)):
                self._ahead = {**self._ahead, name: now - self.begun}
                # A _StokersEpoch comes from another loader
                if not follows(holder) and not isinstance(now, _StokersEpoch):
                    self._scripts |= {name}
            if now is not None and name in self._scripts:
                value, self._ahead = _StokersEpoch(now), {**self._ahead, name: now - self.begun}
                continue
            value = _StokersEpoch(self.begun + self._ahead.get(name, 0))
            holder.set_epoch(value)
            self._left = {**self._left, name: _epoch_of(holder)}
        return value if _is_to_be_told(options.dataset) else None

    @property
    def epochs_ahead(self) -> tuple[tuple[str, int], ...]:
        """Returns the names of objects whose epoch differs from the loader's, and by how much each is ahead."""
        return tuple((name, ahead) for name, ahead in self._ahead.items() if ahead)

    def resume(self, options: LoaderOptions, number: int, place: Place, end: int | None) -> None:
        """Makes `number` the next epoch; the piece of the endless order after it begins at `end`."""
        self.begun = self._pass = self._resumed = number
        self._others, self._last = 0, None
        self.moved, self._ahead, self.coming = False, dict(place.epochs_ahead), None
        if end is not None:
            self.seed, self._origin = place.seed, (number + 1, end)
        self._find(options)

    def _find(self, options: LoaderOptions) -> None:
        """Records the current epochs of all holders as ours, and forgets those set by the script or another loader."""
        self._left = {name: _epoch_of(holder) for name, holder in _holders(options)}
        self._scripts = frozenset()


class SilentEpochs(EpochCounter):
    """Counts the epochs of a loader behind one of torch's, which calls no `set_epoch`: the script does."""

    def announce(self, options: LoaderOptions) -> int | None:
        """Returns None, and calls nothing."""
        self._pass, self.moved = self.begun, False
        return None

    def _find(self, options: LoaderOptions) -> None:
        pass


def _holders(options: LoaderOptions) -> list[tuple[str, Any]]:
    """Returns the objects whose `set_epoch` is to be called, each once, with their names."""
    batches = options.batch_sampler
    named = {"in it": asked(batches, "sampler"), "sampler": options.sampler, "batch_sampler": batches}
    each = {id(holder): (name, holder) for name, holder in [*named.items(), ("dataset", options.dataset)]}.values()
    return [(name, holder) for name, holder in each if _is_to_be_told(holder)]


def _is_to_be_told(holder: Any) -> bool:
    """Returns whether an object offers `set_epoch`; that of Stoker's samplers sets the loader's epoch instead."""
    ours = WalkedInEpochs.set_epoch, BatchSampler.set_epoch
    return offers(holder, "set_epoch") and getattr(type(holder), "set_epoch", None) not in ours


class _StokersEpoch(int):
    """An epoch's number as Stoker sets it: an equal number of another class was set by foreign code."""

    def __reduce__(self) -> Any:
        return int, (int(self),)


def _epoch_of(holder: Any, depth: int = 8) -> int | None:
    """Returns the latest epoch of an object, under the attribute names of torch's samplers and of common streams.

    An object without such an attribute may pass `set_epoch` on to a dataset or a reader that it wraps.
    """
    for name in ("epoch", "_epoch", "current_epoch"):
        value: Any = asked(holder, name)
        if isinstance(value, int):
            return value
        if hasattr(value, "__index__"):  # a tensor that workers share
            return operator.index(value)
        if isinstance(number := getattr(value, "value", None), int):  # a Value of multiprocessing's, or one like it
            return number
    inner = [value for value in _held(holder) if depth and callable(getattr(type(value), "set_epoch", None))]
    return next((epoch for value in inner if (epoch := _epoch_of(value, depth - 1)) is not None), None)


def _held(holder: Any) -> Iterator[Any]:
    for value in getattr(holder, "__dict__", {}).values():
        yield from value[:_MOST_PARTS] if isinstance(value, (list, tuple)) else (value,)
