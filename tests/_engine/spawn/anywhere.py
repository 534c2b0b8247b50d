"""A program that asks of spawned workers what they promise, and nothing of the platform: `python anywhere.py`.

`test_trainer.py` runs it without what only POSIX has. It runs on Windows as it stands.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import pkgutil
import tempfile
import warnings

import numpy as np

import stoker

warnings.filterwarnings("ignore", message="This DataLoader will create")  # a machine may have one CPU


class Images:
    """Samples large enough for slots, of a dataset with an array large enough to be mapped."""

    def __init__(self) -> None:
        self.table = np.arange(100_000)

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, object]:
        if index == 21:
            raise ValueError(f"sample {index} is broken")
        return {"image": np.full((100, 100), self.table[index], np.float32), "index": index}


class Counted(Images):
    """Its workers share a number."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = multiprocessing.get_context("spawn").Value("i", 0)

    def __getitem__(self, index: int) -> dict[str, object]:
        with self.asked.get_lock():
            self.asked.value += 1
        return super().__getitem__(index)


class Dies(Images):
    """At sample 9; only once, if it is given a file to remember it by."""

    def __init__(self, once: str | None = None) -> None:
        super().__init__()
        self.once = once

    def __getitem__(self, index: int) -> dict[str, object]:
        if index == 9 and not (self.once and os.path.exists(self.once)):
            if self.once:
                open(self.once, "x").close()
            os._exit(3)
        return super().__getitem__(index)


class Where(Images):
    """Tells which half of `segments` a worker has."""

    def __getitem__(self, index: int) -> str:
        return importlib.import_module("stoker._engine.transport.segments").Mapping.__module__


def loader(dataset: object, **settings: object) -> stoker.DataLoader:
    return stoker.DataLoader(
        dataset, **{"batch_size": 4, "num_workers": 2, "timeout": 60, "output": "numpy", **settings}
    )


def check(batch: dict[str, np.ndarray]) -> list[int]:
    assert (batch["image"] == batch["index"][:, None, None]).all()
    return batch["index"].tolist()


def main() -> None:
    for module in pkgutil.walk_packages(stoker.__path__, "stoker."):
        if not module.name.startswith("stoker.integrations."):  # each imports a framework
            importlib.import_module(module.name)
    iterator = iter(loader(Images()))
    kept = [next(iterator) for _ in range(5)]
    try:
        next(iterator)
        raise AssertionError
    except ValueError as error:
        assert "in DataLoader worker process" in str(error) and "at sample 21" in str(error), error
    assert list(iterator) == []
    assert [index for batch in kept for index in check(batch)] == list(range(20))
    del kept

    counted = Counted()
    with loader(counted, sampler=range(20), persistent_workers=True) as twice:
        for _ in range(2):
            assert [index for batch in twice for index in check(batch)] == list(range(20))
    assert counted.asked.value == 40

    growing = [np.full((index + 1, 30_000), index) for index in range(8)]
    assert [int(batch[0, -1, -1]) for batch in loader(growing, batch_size=1)] == list(range(8))
    assert [len(batch) for batch in loader(range(30_000), batch_size=10_000, shuffle=True, collate_fn=list)] == 3 * [
        10_000
    ]

    died: list[stoker.events.Event] = []
    with tempfile.TemporaryDirectory(prefix="once") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", stoker.StokerWarning)
        survived = loader(Dies(os.path.join(folder, "died")), sampler=range(20), on_event=died.append)
        assert [index for batch in survived for index in check(batch)] == list(range(20))
    assert [event.kind for event in died] == ["death"] and "batch 2, sample 9" in died[0].message, died

    try:
        list(loader(Dies(), num_workers=1, max_restarts=0))
        raise AssertionError
    except stoker.WorkerDiedError as error:
        assert "exited unexpectedly with exit code 3" in str(error), error
    del iterator, twice
    gc.collect()
    assert not multiprocessing.active_children()
    assert not [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("stoker")]
    print(*next(iter(loader(Where(), collate_fn=set))))


if __name__ == "__main__":
    main()
