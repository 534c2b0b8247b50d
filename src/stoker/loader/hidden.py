"""`HiddenLoader`: the loader behind a loader of torch's, after `stoker.install()`."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from stoker import errors
from stoker.loader import one_writer
from stoker.loader.dataloader import DataLoader
from stoker.loader.iterator import LoaderIterator
from stoker.loader.record import options_of, record_of
from stoker.loader.worker_start import check_sending


class HiddenLoader(DataLoader[Any]):
    """A loader that does what torch's does and no more.

    It calls no method of the user's that torch's loader does not call, reads streams as torch reads them, and repeats
    no warning that torch's loader has given.

    Args:
        prepare: called before samples are made in a process.
        **arguments: as `DataLoader`.
    """

    def __init__(self, prepare: Callable[[], object] | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        record_of(self).follow_torch(prepare)

    def check_worker_number_rationality(self) -> None:
        """Does nothing: torch's loader has warned."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the loader's state; an empty one, with a warning, where a loader of ours would refuse: the program
        goes on as with torch's loader, which has none."""
        record = record_of(self)
        if (refusal := one_writer.refusal(record, record.options(self))) is not None:
            record.tell_once(f"checkpoints do not hold the place of a loader of a stream: {refusal}")
            return {}
        return super().state_dict()

    def _get_iterator(self) -> LoaderIterator:
        iterator = HiddenIterator(self)
        record_of(self).latest = weakref.ref(iterator)
        return iterator

    def check_start(self) -> None:
        """Raises CannotSendError if `iter()` would, and torch's loader would have no need to send what it forks."""
        check_sending(options_of(self))

    @property
    def has_place(self) -> bool:
        """Returns whether a state was loaded from which the next epoch goes on."""
        return record_of(self).resumed is not None


class HiddenIterator(LoaderIterator):
    """The iterator of a hidden loader. A script's own `__iter__` may restart it through torch's."""

    def __init__(self, loader: HiddenLoader) -> None:
        self._hidden = weakref.ref(loader)
        super().__init__(loader)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Starts a new epoch on the same workers.

        Args:
            loader: the hidden loader, or the torch loader before it.
            first_iter: unused, as torch's.

        Raises:
            IteratorClosedError: the loader was made anew meanwhile.
        """
        hidden = self._hidden()
        if hidden is None:
            raise errors.IteratorClosedError("the loader of this iterator was made anew: call iter(loader)")
        super()._reset(hidden, first_iter)
