"""What tests of the error policy share: a dataset with bad samples, the backends, and the story of an epoch."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import stoker
from stoker import DataLoader

N = 48

BACKENDS: dict[str, dict[str, Any]] = {
    "one thread": {"num_workers": 1, "worker_method": "thread"},
    "three threads": {"num_workers": 3, "worker_method": "thread"},
    "one worker": {"num_workers": 1, "multiprocessing_context": "fork"},
    "two workers": {"num_workers": 2, "multiprocessing_context": "fork"},
    "five workers": {"num_workers": 5, "multiprocessing_context": "fork", "prefetch_factor": 1},
    "clean workers": {"num_workers": 2, "multiprocessing_context": "forkserver"},
}
"""Beside the serial one, which is the model."""

Fault = Callable[[Any], object]


def raises(kind: type[Exception], text: str = "image file is truncated") -> Fault:
    """A sample that raises this."""

    def fault(index: Any) -> None:
        raise kind(f"{text} ({index})")

    return fault


def crashes(index: Any) -> None:
    """A sample that ends its process, by its own doing."""
    os.kill(os.getpid(), signal.SIGSEGV)


def is_killed(index: Any) -> None:
    """A sample during which the process is killed from outside."""
    os.kill(os.getpid(), signal.SIGKILL)


class Once:
    """What befalls only the first process that comes here: a file tells the others."""

    def __init__(self, file: Path, fault: Callable[..., object]) -> None:
        self._file = file
        self._fault = fault

    def __call__(self, *about: Any) -> None:
        try:
            os.close(os.open(self._file, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        self._fault(*about)


class Samples(stoker.Dataset[Any]):
    """Sample k is k and a number that is drawn for it; something befalls some of them."""

    def __init__(self, faults: Mapping[int, Fault] | None = None, length: int = N) -> None:
        self.faults = dict(faults or {})
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        if index in self.faults:
            self.faults[index](index)
        rng = stoker.sample_rng()
        return int(index), rng.random_generator.random()


BAD: dict[int, Fault] = {
    2: raises(OSError),
    7: raises(ValueError, "not a JPEG"),
    8: raises(stoker.SkipSample, "too dark"),
    9: raises(OSError),
    30: raises(KeyError, "label"),
    31: raises(stoker.SkipSample, "too small"),
}
"""Where nothing is shuffled, one in each of the first two batches of four, and two in the third and the eighth."""


def loader(dataset: Any, **settings: Any) -> Any:
    """In this process, unless the settings say otherwise."""
    return DataLoader(dataset, **{"batch_size": 4, "seed": 7, "output": "numpy", "max_error_rate": None} | settings)


def plain(batch: Any) -> Any:
    """A batch as plain values."""
    if isinstance(batch, (list, tuple)):
        return [plain(part) for part in batch]
    return batch.tolist() if isinstance(batch, np.ndarray) else batch


def story(made: Any) -> list[Any]:
    """The batches of an epoch as plain values; the class of the error in the place of one that is an error."""
    iterator, told = iter(made), []
    while True:
        try:
            told.append(plain(next(iterator)))
        except StopIteration:
            return told
        except Exception as error:
            told.append(type(error))
            if not iterator.is_open:
                return told


def indices(batches: list[Any]) -> list[Any]:
    """Those of each batch of a story; where it is an error, that."""
    return [batch if isinstance(batch, type) else batch[0] for batch in batches]


CALM = [list(range(first, first + 4)) for first in range(0, N, 4)]
"""The indices of an epoch of `Samples` without faults, not shuffled."""


def fates(made: Any) -> dict[str, Any]:
    """What became of the samples of the latest epoch."""
    counts = made.report().epoch
    names = ("planned", "delivered", "replaced", "skipped", "quarantined", "raised", "not_requested")
    return {name: getattr(counts, name) for name in names}


def faults_in(path: Path) -> list[dict[str, Any]]:
    """The lines of a quarantine file, without what differs from run to run."""
    return [
        {name: value for name, value in vars(record).items() if name not in ("time", "worker", "traceback")}
        for record in stoker.quarantine(path).records
    ]
