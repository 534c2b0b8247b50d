"""Torch's iterator class, called by hand: fastai does so, on an object that is no `DataLoader`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from stoker.datasets.base import IterableDataset
from stoker.integrations._install.behind import noticed, startable, stays_torchs
from stoker.integrations._install.current import CURRENT
from stoker.integrations._install.jpegs import register_jpegs
from stoker.loader.hidden import HiddenLoader


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
            register_jpegs if settings.images else None,
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
