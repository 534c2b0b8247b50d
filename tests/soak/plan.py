"""What a run of a soak is about, drawn by chance: a dataset, and loaders of all kinds that give the same of it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from samples import LETHAL, STREAMS, TABLES, Drawing

import stoker

OUTPUTS = ["numpy"]
if os.environ.get("STOKER_TORCH") != "0" and find_spec("torch") is not None:
    OUTPUTS.append("torch")

STALL = 1.5
"""Seconds from which on a worker stalls. Samples take microseconds, but the machine may be busy."""

TIMEOUT = 60
"""Seconds after which a batch is given up: with pauses and stalls it takes five."""


class Plan:
    """What a run is about, drawn by chance.

    Args:
        chance: what it is drawn with.
        folder: for files.

    Attributes:
        is_stream: whether the dataset has no indices.
        workers: that each loader of a stream has: its batches depend on the number.
        common: arguments that all loaders of the run are given.
        epochs: how many.
    """

    def __init__(self, chance: random.Random, folder: Path) -> None:
        self.chance = chance
        self.is_stream = chance.random() < 0.3
        self.workers = chance.randint(1, 4)
        self.epochs = 1 if self.is_stream else chance.randint(1, 3)
        length = chance.choice([7, 60, 200, 500])
        threads = chance.random() < 0.5
        self._methods = ["process", "process", "process", *(["thread"] if threads or self.is_stream else []), "serial"]
        kind = chance.choice(list(STREAMS if self.is_stream else TABLES))
        draws = "nothing" if kind == "plain" else "rng" if "thread" in self._methods else "all"
        if kind == "plain":
            self.workers = max(2, self.workers)  # where it has one reader, it is lost with its worker
        self._draws = draws
        sample = Drawing(chance.choice([1, 300, 20_000]), draws, self._faults(length))
        self._make: Callable[[], Any] = lambda: (STREAMS if self.is_stream else TABLES)[kind](length, sample)
        self.common: dict[str, Any] = {
            "batch_size": chance.choice([1, 3, 8, 32]),
            "drop_last": chance.random() < 0.3 and length > 32,
            "seed": chance.randrange(1000),
            "on_error": chance.choice(["raise", "skip", "replace"]),
            "max_errors": None,
            "max_error_rate": None,
            "max_restarts": 1000,
        }
        if chance.random() < 0.5:
            self.common["quarantine"] = folder / "bad.jsonl"
        if not self.is_stream:
            self.common["shuffle"] = chance.random() < 0.7
        self.told = f"{kind} of {length}, {self.common}, faults {sample.faults}"

    def _faults(self, length: int) -> dict[int, str]:
        """What ends its worker is the worker's death twice, or three times: a few of them. In a stream, none."""
        chance = self.chance
        found = {
            chance.randrange(length): chance.choice(["raises", "skips"]) for _ in range(chance.choice([0, 0, 1, 5]))
        }
        if not self.is_stream and chance.random() < 0.3:
            kinds = [*list(LETHAL)[:-1]] * 10 + ["hangs"]
            found[chance.randrange(length)] = chance.choice(kinds)
        return found

    def calm(self) -> stoker.DataLoader[Any]:
        """The model: without workers; threads for a stream that several share."""
        several = {"num_workers": self.workers, "worker_method": "thread"} if self._is_shared else {}
        return stoker.DataLoader(self._make(), **self.common, output="numpy", **several)

    @property
    def _is_shared(self) -> bool:
        return self.is_stream and self.workers > 1

    def loader(self, diary: list[str]) -> stoker.DataLoader[Any]:
        """Another one, that gives the same."""
        settings = self._settings()
        diary.append(f"a loader with {settings}")
        return stoker.DataLoader(self._make(), **self.common, **settings)

    def _settings(self) -> dict[str, Any]:
        chance = self.chance
        method = chance.choice(self._methods)
        settings: dict[str, Any] = {"output": chance.choice(OUTPUTS)}
        if method == "serial" and not self._is_shared:
            return settings
        settings |= {
            "num_workers": self.workers if self.is_stream else chance.randint(1, 4),
            "prefetch_factor": chance.randint(1, 4),
            "persistent_workers": chance.random() < 0.3,
            "in_order": self.is_stream or chance.random() < 0.8,
            "timeout": TIMEOUT,
        }
        if method == "thread":
            return settings | {"worker_method": "thread"}
        if not self.is_stream and self._draws == "rng":  # threads share the global generators
            settings["threads_per_worker"] = chance.choice([1, 1, 3])
        return settings | {
            "multiprocessing_context": chance.choice(["fork"] * 6 + ["forkserver", "spawn"]),
            "stall_warning": STALL,
            "stall_action": "restart",
            "max_samples_per_worker": chance.choice([None, None, 10, 100]),
            "memory_budget": chance.choice([None, None, 256 << 20]),
        }
