"""The loader behind a torch loader, made of its attributes at first use."""

from __future__ import annotations

import sys
import warnings
import weakref
from typing import Any

from stoker import errors
from stoker._core.exceptions import users_level
from stoker.datasets.base import is_stream
from stoker.datasets.described import loaded_by
from stoker.integrations._install.current import CURRENT, HIDDEN, Settings
from stoker.loader import loader_kind, torch_support
from stoker.loader.dataloader import DataLoader
from stoker.loader.iterator import LoaderIterator
from stoker.loader.record import options_of, record_of
from stoker.loader.worker_start import birth_of, check_sending

_READ = (
    *("dataset", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context"),
    *("generator", "prefetch_factor", "persistent_workers", "pin_memory_device", "in_order", "batch_size", "drop_last"),
    *("_auto_collation", "_index_sampler", "_dataset_kind"),
)
"""Attributes of a torch loader from which its batches follow."""

_PASSED = _READ[:12]
_OF_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context")


class Behind:
    """What stands behind a torch loader: a loader of ours, or nothing.

    Args:
        values: of the loader's attributes when it was made.
        loader: ours; None if the loader stays torch's.

    Attributes:
        is_fresh: whether no iterator was asked for, since the last state was loaded.
        first: an iterator that `early` has made, for the next `iter()`.
    """

    def __init__(self, values: list[Any], loader: HiddenLoader | None) -> None:
        self.values = values
        self.loader = loader
        self.is_fresh = True
        self.first: Any = None

    def fits(self, values: list[Any]) -> bool:
        """Returns whether the loader's attributes are still the same objects, or equal numbers."""
        return len(values) == len(self.values) and all(map(_is_same, self.values, values))


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, (int, float)) and type(one) is type(other) and one == other)


def kept_behind(loader: Any) -> HiddenLoader | None:
    """Returns the loader of ours that was made behind a torch loader, or None. Makes none."""
    kept: Behind | None = loader.__dict__.get(HIDDEN)
    return None if kept is None else kept.loader


def behind(loader: Any) -> HiddenLoader | None:
    """Returns the loader of ours behind a torch loader, made now if there is none or an attribute has changed.

    Returns None, and warns once for each loader, if the loader stays torch's: Stoker refuses its arguments.
    """
    settings = CURRENT.settings
    if settings is None or isinstance(loader, DataLoader):
        return None
    try:
        values = [getattr(loader, name) for name in _READ]
    except AttributeError:
        return None  # its class never called torch's constructor: torch's own method says so
    kept: Behind | None = loader.__dict__.get(HIDDEN)
    if kept is None or not kept.fits(values):
        kept = loader.__dict__[HIDDEN] = _made(loader, values, kept, settings)
        CURRENT.loaders[id(loader)] = loader
        if "_iterator" in loader.__dict__:  # torch's persistent workers end with their last user
            loader.__dict__["_iterator"] = None
    return kept.loader


def startable(loader: Any) -> HiddenLoader | None:
    """Returns the loader of ours behind a torch loader, for a new iterator.

    Returns None, and warns once for each loader, if the loader stays torch's: Stoker refuses its arguments, or would
    have to send to clean workers what torch forks, and cannot.
    """
    hidden = behind(loader)
    if hidden is None or hidden.has_place:
        return hidden
    try:
        hidden.check_start()
    except errors.CannotSendError as error:
        leave_to_torch(loader, f"{type(error).__name__}: {error}")
        return None
    return hidden


def noticed(loader: Any, iterator: Any) -> Any:
    """Returns a new iterator of a loader; warns if the loader's class has made one of torch's in place of ours."""
    torchs = sys.modules["torch.utils.data.dataloader"]._BaseDataLoaderIter
    if isinstance(iterator, torchs) and not isinstance(iterator, LoaderIterator) and kept_behind(loader) is not None:
        leave_to_torch(loader, f"its class makes iterators of its own ({type(iterator).__name__})")
    return iterator


def leave_to_torch(loader: Any, why: str) -> None:
    """Leaves a loader on torch's engine, and warns."""
    kept: Behind = loader.__dict__[HIDDEN]
    kept.loader = kept.first = None
    _tell(f"{_name(loader)} stays on torch's engine: {why}")


def early(loader: Any) -> HiddenLoader | None:
    """Makes the first iterator of a loader of torchdata's class at its first `state_dict()`, as torchdata does.

    So its numbers are drawn when torchdata draws them: Accelerate asks all loaders for a state before the first epoch.
    Returns the loader behind it; None if it stays torch's.
    """
    kept: Behind = loader.__dict__[HIDDEN]
    if kept.loader is not None and kept.is_fresh and kept.first is None and startable(loader) is not None:
        kept.first = iter(kept.loader)
    return kept.loader


def begun(loader: Any) -> Any:
    """Returns the iterator that `early` has made, once, or None; `iter(loader)` was called."""
    kept: Behind = loader.__dict__[HIDDEN]
    first, kept.first, kept.is_fresh = kept.first, None, False
    return first


def renewed(loader: Any) -> None:
    """Forgets an iterator that `early` has made: another state was loaded."""
    kept: Behind = loader.__dict__[HIDDEN]
    kept.first, kept.is_fresh = None, True


def forget_all() -> None:
    """Takes the loaders of ours from behind all torch loaders. Iterators in use go on; idle workers end."""
    for loader in list(CURRENT.loaders.values()):
        loader.__dict__.pop(HIDDEN, None)
        if "_iterator" in loader.__dict__:  # kept by the loader's class, which would restart it
            loader.__dict__["_iterator"] = None
    CURRENT.loaders.clear()


def _made(loader: Any, values: list[Any], before: Behind | None, settings: Settings) -> Behind:
    old = None if before is None else before.loader
    try:
        hidden = HiddenLoader(settings.images, **_arguments(loader, values, settings))
        if settings.num_workers == "auto":
            hidden.find_workers(settings)
        if old is not None and old.has_place:
            hidden.load_state_dict(old.state_dict())
    except Exception as error:  # whatever the cause: the program runs on as it did without us
        if before is None or before.loader is not None:
            _tell(f"{_name(loader)} stays on torch's engine: {type(error).__name__}: {error}")
        return Behind(values, None)
    finally:
        if old is not None:
            old.close()
    return Behind(values, hidden)


def _arguments(loader: Any, values: list[Any], settings: Settings) -> dict[str, Any]:
    """Returns the arguments of the loader of ours.

    Raises:
        TypeError: the loader contradicts itself.
    """
    found = dict(zip(_READ, values, strict=True))
    given = {name: found[name] for name in _PASSED}
    if not given["num_workers"]:
        given = {name: value for name, value in given.items() if name not in _OF_WORKERS}
    is_of_stream = bool(found["_dataset_kind"])
    if is_of_stream != is_stream(found["dataset"]):
        raise TypeError(f"_dataset_kind={found['_dataset_kind']} does not fit a {type(found['dataset']).__name__}")
    given |= {"output": "torch", "shard": "none"}
    if is_of_stream:
        batched = found["_auto_collation"]
        return given | {"batch_size": found["batch_size"] if batched else None, "drop_last": found["drop_last"]}
    sampler = found["_index_sampler"]
    if settings.order == "stoker" and (sampler is loader.batch_sampler or sampler is loader.sampler):
        ordered = torch_support.order_of(loader, None)
        if ordered.get("shuffle"):
            return given | ordered | {"batch_size": found["batch_size"], "drop_last": found["drop_last"]}
    return given | (
        {"batch_sampler": sampler} if found["_auto_collation"] else {"sampler": sampler, "batch_size": None}
    )


def _name(loader: Any) -> str:
    kind = type(loader)
    dataset = type(getattr(loader, "dataset", None)).__name__
    return f"a {kind.__module__}.{kind.__qualname__} of a {dataset}"


def _tell(text: str) -> None:
    warnings.warn(text, errors.StokerWarning, stacklevel=users_level())


def stays_torchs(owner: str, why: str) -> None:
    """Warns that loaders of a class keep torch's engine."""
    _tell(f"{owner} stays on torch's engine: {why}")


def is_torchs_own(function: Any, module: str) -> bool:
    """Returns whether a function is the one that its class was defined with, and no script's."""
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename == getattr(sys.modules[module], "__file__", None)


class HiddenLoader(DataLoader[Any]):
    """A loader that does what torch's does and no more.

    It calls no method of the user's that torch's loader does not call, reads streams as torch reads them, and repeats
    no warning that torch's loader has given.

    Args:
        images: whether processes that make samples read JPEG files by Stoker's reader.
    """

    def __init__(self, images: bool = False, **arguments: Any) -> None:
        super().__init__(**arguments)
        record_of(self).follow_torch(images)
        self._workers_text: str | None = None

    def find_workers(self, settings: Settings) -> None:
        """Finds the number of workers while the program runs, unless the batches depend on it."""
        given, rebuilds = self.num_workers, birth_of(options_of(self)).rebuilds
        why = record_of(self).find_workers(self, settings.order, rebuilds)
        self._workers_text = (
            f"num_workers={given} of the program" if why is None else f"num_workers={given} is kept: {why}"
        )

    @property
    def workers_text(self) -> str | None:
        """Returns the number of workers that `install(num_workers="auto")` has found, or why it is the program's; None
        without "auto"."""
        record, text = record_of(self), self._workers_text
        return text if record.auto is None else f"{text} is {record.auto.text(options_of(self))}"

    def __repr__(self) -> str:
        return f"<Stoker's engine behind a DataLoader: {loaded_by(self)}>"

    def describe(self) -> str:
        """Returns a description of the run, as `DataLoader.describe`."""
        text = super().describe()
        return text if record_of(self).auto is not None else "\n".join(filter(None, [text, self._workers_text]))

    def check_worker_number_rationality(self) -> None:
        """Does nothing: torch's loader has warned."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the loader's state; an empty one, with a warning, where a loader of ours would refuse: the program
        goes on as with torch's loader, which has none."""
        record = record_of(self)
        if (refusal := loader_kind.refusal(record, record.options(self))) is not None:
            record.tell_once(f"checkpoints do not hold the place of a loader of a stream: {refusal}")
            return {}
        return super().state_dict()

    def _get_iterator(self) -> LoaderIterator:
        record = record_of(self)
        record.prepare(self)
        iterator = HiddenIterator(self)
        record.latest = weakref.ref(iterator)
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
