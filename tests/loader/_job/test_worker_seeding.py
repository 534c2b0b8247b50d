from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stoker.loader._job.torch_worker_info import run_init_fn, seed_per_worker
from stoker.loader._random.generators import global_streams
from stoker.loader._random.sample_seeding import Seeding

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

SEED = 2**62 + 12345


@pytest.fixture(autouse=True)
def generators_put_back() -> Iterator[None]:
    streams = global_streams().values()
    states = [(stream, stream.state()) for stream in streams]
    yield
    for stream, state in states:
        stream.restore(state)


def states() -> dict[str, Any]:
    return {whose: stream.state() for whose, stream in global_streams().items()}


def per_worker(worker_id: int = 3) -> dict[str, Any]:
    """The states in which torch's loader starts this worker."""
    seed_per_worker(worker_id, SEED)
    return states()


def start(init_fn: Callable[[int], object] | None, *, mode: Seeding = "auto", dataset: object = None) -> bool:
    return run_init_fn(init_fn, 3, SEED, mode=mode, dataset=dataset)


@pytest.mark.parametrize("base_seed", [0, 1, 2**32 - 1, 2**32, SEED, 2**63 - 1])
@pytest.mark.parametrize("worker_id", [0, 3])
def test_seeds_are_torchs(base_seed: int, worker_id: int) -> None:
    pytest.importorskip("torch")
    from torch.utils.data._utils.worker import _generate_state

    seed_per_worker(worker_id, base_seed)
    made = states()
    random.seed(base_seed + worker_id)
    torch.manual_seed(base_seed + worker_id)
    np.random.seed(_generate_state(base_seed, worker_id))
    assert made == states()


def test_the_recipe_for_numpy_is_pinned() -> None:
    seed_per_worker(3, 1234)
    assert np.random.randint(2**31, size=2).tolist() == [199931132, 1230652006]


RECIPES: dict[str, tuple[str, Callable[[int], object]]] = {
    "numpy from torch": ("NumPy", lambda worker_id: np.random.seed(torch.initial_seed() % 2**32)),
    "numpy from the seed": ("NumPy", lambda worker_id: np.random.seed((SEED + worker_id) % 2**32)),
    "numpy from the number": ("NumPy", lambda worker_id: np.random.seed(worker_id)),
    "numpy from its own state": ("NumPy", lambda number: np.random.seed(np.random.get_state()[1][0] + number)),
    "numpy as torch does it": ("NumPy", lambda worker_id: seed_per_worker(worker_id, SEED, ["NumPy"])),
    "python from torch": ("Python", lambda worker_id: random.seed(torch.initial_seed())),
    "python from the seed": ("Python", lambda worker_id: random.seed(SEED + worker_id)),
    "python from the number": ("Python", lambda worker_id: random.seed(worker_id)),
    "torch from torch": ("torch", lambda worker_id: torch.manual_seed(torch.initial_seed())),
    "torch from the number": ("torch", lambda worker_id: torch.manual_seed(worker_id)),
    "a draw": ("Python", lambda worker_id: random.random()),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_function_that_seeds_owns_the_generators(recipe: str) -> None:
    whose, init_fn = RECIPES[recipe]
    if "torch" in recipe:
        pytest.importorskip("torch")
    expected = per_worker()
    assert start(init_fn)
    made = states()
    assert {name: state for name, state in made.items() if name != whose} == {
        name: state for name, state in expected.items() if name != whose
    }
    if recipe not in ("numpy from its own state", "a draw"):
        per_worker()
        init_fn(3)
        assert made[whose] == states()[whose]


@pytest.mark.parametrize("mode", ["auto", "sample", "worker"])
def test_torchs_initial_seed_is_the_workers(mode: Seeding) -> None:
    pytest.importorskip("torch")
    seen: list[int] = []
    start(lambda worker_id: seen.extend([worker_id, torch.initial_seed()]), mode=mode)
    assert seen == [3, SEED + 3]
    assert torch.initial_seed() == SEED + 3


def test_a_function_that_seeds_nothing_changes_nothing() -> None:
    dataset = SimpleNamespace(rng=np.random.default_rng(1))
    seen: list[int] = []
    assert not start(seen.append, dataset=dataset)
    assert seen == [3]
    assert not start(lambda worker_id: setattr(dataset, "shard", worker_id), dataset=dataset)
    assert not start(None, dataset=dataset)


@pytest.mark.parametrize(
    "init",
    [
        lambda dataset: setattr(dataset, "rng", np.random.default_rng(1)),
        lambda dataset: setattr(dataset, "other", random.Random(1)),
        lambda dataset: dataset.rng.random(),
        lambda dataset: delattr(dataset, "rng"),
    ],
    ids=["another one", "one more", "moved", "taken away"],
)
def test_init_function_that_seeds_dataset_generator_owns_it(init: Callable[[Any], object]) -> None:
    dataset = SimpleNamespace(rng=np.random.default_rng(1))
    expected = per_worker()
    assert start(lambda worker_id: init(dataset), dataset=dataset)
    assert states() == expected


@pytest.mark.parametrize("init_fn", [None, lambda worker_id: random.seed(worker_id)], ids=["without", "with"])
def test_an_asked_for_mode_is_kept(init_fn: Callable[[int], object] | None) -> None:
    expected = per_worker()
    if init_fn is not None:
        init_fn(3)
        expected = states()
    assert start(init_fn, mode="worker")
    assert states() == expected
    assert not start(init_fn, mode="sample")


def test_workers_start_apart() -> None:
    seen: list[tuple[float, float]] = []

    def draw(worker_id: int) -> None:
        seen.append((random.random(), np.random.rand()))

    for worker_id in range(2):
        run_init_fn(draw, worker_id, SEED, mode="auto", dataset=None)
    assert len({number for pair in seen for number in pair}) == 4


def test_an_exception_of_the_function_comes_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        start(lambda worker_id: 1 // 0)


@pytest.mark.parametrize("draws", [False, True])
def test_a_function_may_import_torch(draws: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    torch.default_generator.manual_seed(torch.Generator().initial_seed())  # as an import leaves it
    monkeypatch.delitem(sys.modules, "torch")

    def init_fn(worker_id: int) -> None:
        monkeypatch.setitem(sys.modules, "torch", torch)
        if draws:
            torch.rand(())

    assert start(init_fn) == draws
