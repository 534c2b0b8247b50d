"""Batches and states of a dozen loaders, as they were when this was written: a change of the engine changes none.

`python -m tests.pinned.test_pinned` writes `batches.json` anew, for a change that is meant to. Its states have the form
in which earlier versions wrote them.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from tests.loader._state.edits import formerly

EXPECTED = Path(__file__).with_name("batches.json")
STOPS = (1, 4)
"""Batches of the second epoch behind which the state is taken."""

BACKENDS: dict[str, dict[str, Any]] = {
    "serial": {},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "forkserver": {"num_workers": 2, "multiprocessing_context": "forkserver"},
    "thread": {"num_workers": 2, "worker_method": "thread"},
}


class Numbers(stoker.Dataset[Any]):
    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> Any:
        return {"index": index, "values": np.arange(4, dtype=np.float32) * index}


class Augmented(Numbers):
    """Draws from Python's and NumPy's global generators, and from one of its own."""

    def __init__(self) -> None:
        self.own = np.random.default_rng(3)

    def __getitem__(self, index: int) -> Any:
        return index, random.random(), float(np.random.rand()), self.own.random()


def count() -> Iterator[int]:
    yield from range(50)


def lengths() -> list[int]:
    return [3 + (7 * index) % 20 for index in range(50)]


LOADERS: dict[str, Callable[[], dict[str, Any]]] = {
    "in order": lambda: {"dataset": Numbers()},
    "shuffled": lambda: {"dataset": Numbers(), "shuffle": True},
    "without a last batch": lambda: {"dataset": Numbers(), "shuffle": True, "drop_last": True},
    "single samples": lambda: {"dataset": Numbers(), "shuffle": True, "batch_size": None},
    "weighted": lambda: {
        "dataset": Numbers(),
        "sampler": stoker.WeightedRandomSampler([1.0 + index % 3 for index in range(50)], 40),
    },
    "subset": lambda: {"dataset": Numbers(), "sampler": stoker.SubsetRandomSampler(range(5, 35))},
    "bucketed": lambda: {
        "dataset": Numbers(),
        "batch_sampler": stoker.BucketBatchSampler(lengths(), batch_size=4, shuffle=True),
    },
    "balanced": lambda: {
        "dataset": Numbers(),
        "batch_sampler": stoker.BalancedBatchSampler(
            [i % 5 for i in range(50)], classes_per_batch=2, samples_per_class=3
        ),
    },
    "distributed": lambda: {
        "dataset": Numbers(),
        "shuffle": True,
        "distributed": "exact",
        "num_replicas": 3,
        "rank": 1,
    },
    "pieces": lambda: {"dataset": Numbers(), "shuffle": True, "batches_per_epoch": 9},
    "augmented": lambda: {"dataset": Augmented(), "shuffle": True},
    "columns": lambda: {"dataset": stoker.TensorDataset(np.arange(50), np.arange(100).reshape(50, 2)), "shuffle": True},
    "stream": lambda: {"dataset": stoker.from_iterable(count)},
    "shuffled stream": lambda: {"dataset": stoker.ShuffleDataset(stoker.from_iterable(count), buffer_size=10, seed=4)},
}

RAN = {"augmented": ("serial", "fork", "forkserver")}
"""Loaders that are not the same on every backend: threads share the global generators."""


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(plain(value), sort_keys=True).encode()).hexdigest()[:16]


def made(name: str, backend: str) -> stoker.DataLoader[Any]:
    chosen = LOADERS[name]()
    size = {} if "batch_sampler" in chosen or "batch_size" in chosen else {"batch_size": 4}
    return stoker.DataLoader(**size, seed=7, output="numpy", **BACKENDS[backend], **chosen)


def found(name: str, backend: str) -> dict[str, Any]:
    """The digest of two epochs, and states within the second with the digest of what follows each."""
    loader = made(name, backend)
    first = list(loader)
    batches: list[Any] = []
    states = {}
    iterator = iter(loader)
    for number, batch in enumerate(iterator, 1):
        batches.append(plain(batch))
        if number in STOPS:
            states[number] = loader.state_dict()
    return {
        "epochs": [digest(first), digest(batches)],
        "states": {str(number): state for number, state in states.items()},
        "rests": {str(number): digest(batches[number:]) for number in states},
    }


CASES = [(name, backend) for name in LOADERS for backend in RAN.get(name, BACKENDS)]
# Clean workers take seconds to start, so CI has some of them.
IN_CI = ("stream", "shuffled", "augmented", "weighted")
MARKED, RESUMED = (
    [
        pytest.param(*case, marks=[] if case[1] != "forkserver" else [mark] if case[0] in IN_CI else [pytest.mark.long])
        for case in CASES
    ]
    for mark in (pytest.mark.slow, pytest.mark.long)
)


def key(name: str, backend: str) -> str:
    """Streams are read by one worker or by several, which is seen; elsewhere no backend is."""
    is_seen = name.endswith("stream") and backend != "serial"
    return f"{name}, several workers" if is_seen else name


@pytest.mark.filterwarnings("ignore::stoker.errors.StokerWarning")
@pytest.mark.parametrize(("name", "backend"), MARKED)
def test_batches_and_states_are_those_of_before(name: str, backend: str) -> None:
    expected = json.loads(EXPECTED.read_text())[key(name, backend)]
    now = found(name, backend)
    assert now["epochs"] == expected["epochs"]
    states = {number: formerly(state) for number, state in now["states"].items()}
    assert json.loads(json.dumps(states)) == expected["states"]


@pytest.mark.filterwarnings("ignore::stoker.errors.StokerWarning")
@pytest.mark.parametrize(("name", "backend"), RESUMED)
def test_states_of_before_are_resumed(name: str, backend: str) -> None:
    expected = json.loads(EXPECTED.read_text())[key(name, backend)]
    for number, state in expected["states"].items():
        loader = made(name, backend)
        loader.load_state_dict(state)
        assert digest(list(loader)) == expected["rests"][number]


if __name__ == "__main__":
    results = {key(name, backend): found(name, backend) for name, backend in CASES}
    for result in results.values():
        result["states"] = {number: formerly(state) for number, state in result["states"].items()}
    EXPECTED.write_text(json.dumps(results, indent=1) + "\n")
    print(f"wrote {EXPECTED.name}")
