"""`LoaderSetting`: the arguments of a loader that `stoker tune` tries, and how they are put into an existing loader."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

PREFETCH = 2
"""Batches ahead for each worker, if nothing is said: torch's default, and Stoker's."""


@dataclass(frozen=True)
class LoaderSetting:
    """Arguments of a loader.

    Attributes:
        workers: `num_workers`.
        prefetch: `prefetch_factor`; None without workers.
        threads: `threads_per_worker`, of Stoker's loaders only.
        batch_size: None leaves that of the loader.
        persistent: `persistent_workers`.
    """

    workers: int
    prefetch: int | None = None
    threads: int = 1
    batch_size: int | None = None
    persistent: bool = False

    @property
    def arguments(self) -> dict[str, int]:
        """Returns the arguments for the constructor of a loader."""
        found: dict[str, int] = {} if self.batch_size is None else {"batch_size": self.batch_size}
        found["num_workers"] = self.workers
        if self.workers and self.prefetch is not None:
            found["prefetch_factor"] = self.prefetch
        if self.workers and self.threads > 1:
            found["threads_per_worker"] = self.threads
        if self.workers and self.persistent:
            found["persistent_workers"] = True
        return found

    def as_text(self) -> str:
        """Returns the setting as text, for another process."""
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> LoaderSetting:
        """Returns the setting that `as_text` gave."""
        return cls(**json.loads(text))


class Override:
    """Puts a setting into the loaders of a program, as `iter(loader)` is called.

    Args:
        setting: for the loader.
        site: the line that iterates; None for any.
        dataset: the dataset's class; None for any.
    """

    def __init__(self, setting: LoaderSetting, site: str | None = None, dataset: str | None = None) -> None:
        self._setting = setting
        self._site = site
        self._dataset = dataset

    def __call__(self, loader: Any, site: str) -> None:
        """Changes the loader, if it is the one that is meant."""
        if self._site in (None, site) and self._dataset in (None, type(getattr(loader, "dataset", None)).__name__):
            put_into(loader, self._setting)

    def as_text(self) -> str:
        """Returns the override as text for a variable of the environment."""
        return json.dumps({"setting": asdict(self._setting), "site": self._site, "dataset": self._dataset})

    @classmethod
    def of_text(cls, text: str) -> Override:
        """Returns the override that `as_text` gave."""
        values = json.loads(text)
        return cls(LoaderSetting(**values["setting"]), values["site"], values["dataset"])


def put_into(loader: Any, setting: LoaderSetting) -> None:
    """Changes an existing loader of torch's or Stoker's, with effect from its next `iter()` on. Idempotent.

    Raises:
        ValueError: the loader's batches are made by a batch sampler of its own, and another batch size is asked for;
            or threads are asked for, and the loader is torch's.
    """
    own, record = vars(loader), vars(loader).get("_stoker")
    before = setting_of(loader)
    wanted = replace(setting, batch_size=setting.batch_size or before.batch_size)
    if wanted.workers and wanted.prefetch is None:
        wanted = replace(wanted, prefetch=_usual_prefetch(loader, wanted.threads))
    if wanted == before and getattr(record, "auto", None) is None:
        return
    if wanted.threads > 1 and record is None:
        raise ValueError("threads_per_worker is an argument of stoker.DataLoader, and this loader is torch's")
    _end_persistent_workers(loader)
    if record is not None:
        record.try_with(wanted.threads)
    if wanted.batch_size != before.batch_size:
        _put_batch_size(loader, wanted.batch_size)
    own["num_workers"], own["prefetch_factor"] = wanted.workers, wanted.prefetch
    own["persistent_workers"] = wanted.persistent
    if not wanted.workers:
        own["timeout"] = 0


def _usual_prefetch(loader: Any, threads: int) -> int:
    record = vars(loader).get("_stoker")
    units = 1 if record is None else replace(record.options(loader), threads_per_worker=threads).units_at_once
    return max(PREFETCH, units)


def setting_of(loader: Any) -> LoaderSetting:
    """Returns the present setting of a loader."""
    workers = int(getattr(loader, "num_workers", 0) or 0)
    record = vars(loader).get("_stoker")
    threads = 1 if record is None else record.own()["threads_per_worker"]
    persistent = bool(workers and loader.persistent_workers)
    return LoaderSetting(workers, loader.prefetch_factor if workers else None, threads, loader.batch_size, persistent)


def _put_batch_size(loader: Any, size: int | None) -> None:
    sampler = loader.batch_sampler
    kind = type(sampler)
    if (
        loader.batch_size is None
        or kind.__name__ != "BatchSampler"
        or kind.__module__.split(".")[0]
        not in (
            "torch",
            "stoker",
        )
    ):
        made = "without batches (batch_size=None)" if sampler is None else f"by a {kind.__name__} of its own"
        raise ValueError(f"the batch size cannot be changed, because the loader's batches are made {made}")
    changed = copy.copy(sampler)
    changed.batch_size = size
    vars(loader)["batch_sampler"], vars(loader)["batch_size"] = changed, size


def _end_persistent_workers(loader: Any) -> None:
    """Ends workers that would go on with the old setting."""
    iterator = vars(loader).get("_iterator")
    if iterator is None:
        return
    vars(loader)["_iterator"] = None
    end: Callable[[], None] | None = getattr(iterator, "close", None) or getattr(iterator, "_shutdown_workers", None)
    if end is not None:
        end()
