"""What torch's `DataLoader` gets: its iterators and its state are those of the loader behind it.

Each function does as the one before it where nothing stands behind a loader, also after the installation is undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from stoker import errors
from stoker.datasets.base import IterableDataset
from stoker.integrations._install.behind import (
    HiddenIterator,
    HiddenLoader,
    begun,
    behind,
    early,
    kept_behind,
    noticed,
    renewed,
    startable,
    stays_torchs,
)
from stoker.integrations._install.current import CURRENT, HIDDEN, ORIGINAL, Changes, original_of
from stoker.loader.dataloader import DataLoader
from stoker.loader.stateful import as_torchdatas

_NAMES = ("__iter__", "_get_iterator", "state_dict", "load_state_dict")


def put_on(kind: type, changes: Changes, *, iter_too: bool = True, stateful: bool = False) -> None:
    """Lets the loaders of a class ask the loaders behind them.

    Args:
        kind: torch's `DataLoader`, or a subclass with an engine of its own.
        iter_too: whether `__iter__` is the class's own, and no script's.
        stateful: whether it has torchdata's states.
    """
    made = _functions(kind, stateful)
    for name in _NAMES:
        if name != "__iter__" or iter_too:
            setattr(made[name], ORIGINAL, original_of(kind, name))
            changes.put(kind, name, made[name])
    changes.put(kind, "_iterator", _IteratorAttribute())


def _functions(kind: type, stateful: bool) -> dict[str, Any]:
    first = {name: original_of(kind, name) for name in _NAMES}

    def __iter__(self: Any) -> Any:
        hidden = behind(self)
        if hidden is None:
            return first["__iter__"](self)
        if not hidden.persistent_workers or getattr(self._get_iterator, "__func__", None) is _get_iterator:
            return noticed(self, self._get_iterator())
        kept = _kept(self, hidden)
        if kept is None:
            kept = self._iterator = noticed(self, self._get_iterator())
        else:
            kept._reset(self)
        return kept

    def _get_iterator(self: Any) -> Any:
        hidden = startable(self)
        if hidden is None:
            return first["_get_iterator"](self)
        hidden._IterableDataset_len_called = self._IterableDataset_len_called
        made = begun(self)
        return made if made is not None and made.is_open else iter(hidden)

    def state_dict(self: Any) -> dict[str, Any]:
        """Returns the state right after the last batch received; an empty one if the loader stays torch's."""
        hidden = kept_behind(self)
        hidden = behind(self) if hidden is None else hidden
        if hidden is not None and stateful:
            hidden = early(self)
        if hidden is None:
            return {} if first["state_dict"] is None else first["state_dict"](self)
        state = hidden.state_dict()
        return as_torchdatas(hidden, state) if stateful and state else state

    def load_state_dict(self: Any, state_dict: dict[str, Any]) -> None:
        """Makes the next `iter()` continue from a state; an empty one, of a loader that stayed torch's, says nothing.

        Raises:
            StateFormatError, StateMismatchError: the state does not fit. The loader is unchanged.
        """
        hidden = behind(self)
        if hidden is not None:
            if state_dict:
                hidden.load_state_dict(state_dict)
                renewed(self)
        elif first["load_state_dict"] is not None:
            first["load_state_dict"](self, state_dict)
        elif state_dict:
            raise errors.StateMismatchError(
                "this state is of a loader that ran on Stoker's engine, but this loader stays on torch's, which cannot "
                "go on from it. Its warning said why; or call stoker.install() before the state is loaded."
            )

    return {each.__name__: each for each in (__iter__, _get_iterator, state_dict, load_state_dict)}


def _kept(loader: Any, hidden: HiddenLoader) -> Any:
    """Returns the persistent iterator that the loader's class made, to be restarted for the next epoch; or None."""
    if hidden.has_place and hidden._dataset_kind:
        loader._iterator = None  # the workers' copies of a stream are at the end of the last epoch
    kept = loader.__dict__.get("_iterator")
    return None if isinstance(kept, HiddenIterator) and not kept.is_open else kept


class _IteratorAttribute:
    """`loader._iterator`: the persistent iterator of the loader behind. Frameworks end its workers by setting None."""

    def __get__(self, loader: Any, kind: type | None = None) -> Any:
        if loader is None:
            return self
        own = loader.__dict__
        if HIDDEN in own and own.get("_iterator") is None and (hidden := kept_behind(loader)) is not None:
            return hidden._iterator
        try:
            return own["_iterator"]
        except KeyError:
            raise AttributeError(f"{type(loader).__name__!r} object has no attribute '_iterator'") from None

    def __set__(self, loader: Any, value: Any) -> None:
        loader.__dict__["_iterator"] = value  # torch's methods read it once the installation is undone
        if value is None and (hidden := kept_behind(loader)) is not None:
            hidden.close()

    def __delete__(self, loader: Any) -> None:
        loader.__dict__.pop("_iterator", None)


# A pickled loader installs in the process that unpickles it: the children of `ddp_spawn` know nothing else of us.


def reduce_ex(loader: Any, protocol: Any, unpickled: Callable[..., Any]) -> Any:
    """Returns the parts of a torch loader for pickle and copy: those of any object, without the loader behind it.

    Args:
        unpickled: called with the settings, a callable and its arguments where the loader is unpickled.
    """
    made = object.__reduce_ex__(loader, protocol)
    settings = CURRENT.settings
    if not isinstance(made, tuple) or isinstance(loader, DataLoader):
        return made
    make, arguments, *rest = made
    rest[:1] = map(_without_ours, rest[:1])
    return (make, arguments, *rest) if settings is None else (unpickled, (settings, make, arguments), *rest)


def _without_ours(state: Any) -> Any:
    """Returns the state of a loader without the loader behind it and without its iterator."""
    if isinstance(state, tuple):  # of a class with slots
        return tuple(map(_without_ours, state))
    if not isinstance(state, dict) or HIDDEN not in state:
        return state
    return {name: value for name, value in state.items() if name != HIDDEN} | {"_iterator": None}


# Torch's iterator class, called by hand: fastai does so, on an object that is no `DataLoader`.


class _DatasetOfIterator(IterableDataset[Any]):
    """The dataset of such an object, as a stream. Its attributes are found here too: workers look them up."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return iter(self._dataset)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_dataset"], name)


def new_of(torchs: Any) -> Callable[..., Any]:
    """Returns `__new__` for torch's iterator of several processes.

    Args:
        torchs: the module `torch.utils.data.dataloader`.
    """
    iterators, loaders = torchs._MultiProcessingDataLoaderIter, torchs.DataLoader

    def __new__(kind: type, *arguments: Any, **named: Any) -> Any:
        if CURRENT.settings is None or len(arguments) != 1:
            return object.__new__(kind)
        loader = arguments[0]
        if kind is not iterators:
            return noticed(loader, object.__new__(kind)) if isinstance(loader, loaders) else object.__new__(kind)
        if isinstance(loader, loaders):
            hidden = startable(loader)
            return object.__new__(kind) if hidden is None else iter(hidden)
        made = _made(loader)
        return object.__new__(kind) if made is None else iter(made)

    return __new__


def _made(loader: Any) -> HiddenLoader | None:
    """Returns a loader of ours for an object that torch's iterator would read; None if it is of no kind known here."""
    settings = CURRENT.settings
    assert settings is not None
    try:
        if not loader._dataset_kind or loader._auto_collation:
            raise TypeError("torch's iterator was called by hand, on an object that is no DataLoader and no stream")
        hidden = HiddenLoader(
            settings.images,
            dataset=_DatasetOfIterator(loader.dataset),
            batch_size=None,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            worker_init_fn=loader.worker_init_fn,
            timeout=loader.timeout,
            generator=loader.generator,
            pin_memory=loader.pin_memory,
            prefetch_factor=loader.prefetch_factor,
            shard="none",
            output="torch",
        )
        hidden.check_start()
        return hidden
    except Exception as error:  # whatever the cause: the program runs on as it did without us
        kind = type(loader)
        stays_torchs(f"a {kind.__module__}.{kind.__qualname__}", f"{type(error).__name__}: {error}")
        return None
