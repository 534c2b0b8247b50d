"""Which epoch of a loader is the next: epochs are counted, and whoever has a `set_epoch` is told or obeyed."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from stoker.loader import arguments
from stoker.loader.state import Place
from stoker.samplers import BatchSampler
from stoker.samplers.passes import WalkedInEpochs

if TYPE_CHECKING:
    from stoker.loader.dataloader import DataLoader


class Epochs:
    """Numbers the epochs of a loader, across its iterators. Those without an end are one order, cut into pieces.

    Attributes:
        begun: how many have begun: the number of the next.
        moved: whether `set_epoch` has, since the latest `iter()`, asked for another one than would have come next.
        seed: of the order without an end, once it is decided.
    """

    def __init__(self) -> None:
        self.begun = 0
        self.moved = False
        self.seed: int | None = None
        self._resumed: int | None = None  # number of the epoch of a loaded state, until others say theirs
        self._others = 0  # by how much our number is ahead of what others count, as they began
        self._uncounted = 0  # passes of ours beyond that, which they have not counted
        self._last: int | None = None  # number that others said last
        self._pass = 0  # number of the epoch that the next pass of others over our sampler gives
        self._origin = (0, 0)  # (number, position) from which on all pieces have one length
        self._left: dict[str, int | None] = {}  # what has a set_epoch → the epoch that we left there
        self._ahead: dict[str, int] = {}  # by how much somebody else has set it ahead of our number

    def piece(self, number: int, length: int) -> Place:
        """Where a piece of the endless order begins, if all pieces have this length."""
        return Place(seed=self.seed, position=max(0, self._origin[1] + (number - self._origin[0]) * length))

    def set_by_others(self, number: int) -> None:
        """A sampler's `set_epoch` was called: by those who count epochs themselves.

        Where they begin below the epoch of a state that was loaded, they count those of this run (Lightning's Fabric).
        One of theirs may hold several of our passes (Lightning's `CombinedLoader`, until the longest of its loaders has
        ended): where they count on, none of these comes again. The number that they said last, or a lower one, goes
        back.
        """
        number = arguments.count("epoch", number)
        if self._resumed is not None:
            self._others, self._resumed = max(0, self._resumed - number), None
        if self._last is None or number < self._last:
            self._uncounted = 0
        elif number > self._last:
            self._uncounted = max(self._uncounted, self.begun - number - self._others)
        self._last = number
        self._set(number + self._others + self._uncounted)

    def set_epoch(self, loader: DataLoader[Any], number: int) -> None:
        """Makes this the number of the next epoch, and of the next pass of others."""
        number = arguments.count("epoch", number)
        self._others, self._resumed, self._last = 0, None, None
        self._set(number)
        self._find(loader)

    def _set(self, number: int) -> None:
        self.moved |= number != self.begun
        self.begun = self._pass = number

    def passed(self, number: int) -> None:
        """The loader has begun this epoch itself."""
        self._pass = number + 1

    def next_pass(self) -> int:
        """Number of the epoch that others walk now. It changes nothing for the loader."""
        self._pass += 1
        return self._pass - 1

    def announce(self, loader: DataLoader[Any]) -> int | None:
        """Calls `set_epoch` where the dataset or a sampler has it; returns what the dataset was told, if anything.

        Whoever calls it himself is obeyed: an epoch that is not the one we left there is his, and we count on from it.
        """
        value = None
        self._pass, self.moved = self.begun, False
        for name, holder in _holders(loader):
            now, left = _epoch_of(holder), self._left.get(name, 0)
            if now is not None and (now != left or type(now) is not type(left)):
                self._ahead = {**self._ahead, name: now - self.begun}
            value = _Told(self.begun + self._ahead.get(name, 0))
            holder.set_epoch(value)
            self._left = {**self._left, name: _epoch_of(holder)}
        return value if callable(getattr(type(loader.dataset), "set_epoch", None)) else None

    @property
    def told(self) -> tuple[tuple[str, int], ...]:
        """Who was told another number than ours, and by how much it is ahead."""
        return tuple((name, ahead) for name, ahead in self._ahead.items() if ahead)

    def resume(self, loader: DataLoader[Any], number: int, place: Place, end: int | None) -> None:
        """The next epoch has this number; the piece that follows it begins at `end`."""
        self.begun = self._pass = self._resumed = number
        self._others, self._last = 0, None
        self.moved, self._ahead = False, dict(place.told)
        if end is not None:
            self.seed, self._origin = place.seed, (number + 1, end)
        self._find(loader)

    def _find(self, loader: DataLoader[Any]) -> None:
        """Our number was given: what others were told before is past, also by a loader that had them earlier."""
        self._left = {name: _epoch_of(holder) for name, holder in _holders(loader)}


def _holders(loader: DataLoader[Any]) -> list[tuple[str, Any]]:
    """Who is to be told of epochs, each once."""
    batches = loader.batch_sampler
    named = {"in it": getattr(batches, "sampler", None), "sampler": loader.sampler, "batch_sampler": batches}
    each = {id(holder): (name, holder) for name, holder in [*named.items(), ("dataset", loader.dataset)]}.values()
    return [(name, holder) for name, holder in each if _is_to_be_told(holder)]


def _is_to_be_told(holder: Any) -> bool:
    """Whether it has a `set_epoch` of its own: that of our samplers is for those who set the loader's epoch."""
    found = getattr(type(holder), "set_epoch", None)
    return callable(found) and found not in (WalkedInEpochs.set_epoch, BatchSampler.set_epoch)


class _Told(int):
    """An epoch's number as we tell it: one that is equal and not of this class was set by somebody else."""

    def __reduce__(self) -> Any:
        return int, (int(self),)


def _epoch_of(holder: Any, depth: int = 8) -> int | None:
    """The epoch that was set last, under the names that samplers of torch and streams of others give it.

    Who has none of these may pass `set_epoch` on, to a dataset or a reader that it wraps.
    """
    for name in ("epoch", "_epoch", "current_epoch"):
        value: Any = getattr(holder, name, None)
        if isinstance(value, int):
            return value
        if hasattr(value, "__index__"):  # a tensor that workers share
            return operator.index(value)
        if isinstance(told := getattr(value, "value", None), int):  # a Value of multiprocessing's, or one like it
            return told
    inner = [value for value in getattr(holder, "__dict__", {}).values() if depth and _is_to_be_told(value)]
    return next((epoch for value in inner if (epoch := _epoch_of(value, depth - 1)) is not None), None)
