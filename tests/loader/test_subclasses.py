"""Subclasses of the loader with attributes, properties and methods that have the names of Stoker's options."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import stoker
from stoker.loader._options.loader_options import STOKERS, TORCHS

torch = pytest.importorskip("torch")


class Template(stoker.DataLoader[Any]):
    """As a widely copied project template has it."""

    def __init__(self, dataset: Any, **kwargs: Any) -> None:
        self.output = []
        super().__init__(dataset, **kwargs)
        for name in STOKERS:
            setattr(self, name, f"own {name}")


class Early(stoker.DataLoader[Any]):
    def __init__(self, dataset: Any, **kwargs: Any) -> None:
        for name in STOKERS:
            setattr(self, name, f"own {name}")
        super().__init__(dataset, **kwargs)


class Methods(stoker.DataLoader[Any]):
    """Each of Stoker's names is a method, a property without a setter, or a class attribute."""

    seed = "own seed"

    @property
    def rank(self) -> str:
        return "own rank"

    def output(self) -> str:  # type: ignore[override]
        return "own output"

    def close(self, now: bool) -> None:  # type: ignore[override]
        raise AssertionError("the engine called a method of the subclass")

    def report(self, text: str) -> None:  # type: ignore[override]
        raise AssertionError("the engine called a method of the subclass")

    describe = set_epoch = in_step = report  # type: ignore[assignment]


class PrivateNames(stoker.DataLoader[Any]):
    """Attributes that the loader's own implementation has had at some time."""

    def __init__(self, dataset: Any, **kwargs: Any) -> None:
        super().__init__(dataset, **kwargs)
        for name in ("settings", "rules", "method", "threads", "ledger", "progress", "epochs", "hint", "auto", "told"):
            setattr(self, f"_{name}", f"own {name}")


def batches(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


SETTINGS = [
    {"seed": 3, "shuffle": True},
    {"seed": 3, "shuffle": True, "num_workers": 2, "persistent_workers": True},
    {"seed": 3, "shuffle": True, "num_workers": 2, "worker_method": "thread"},
    {"distributed": "exact", "num_replicas": 2, "rank": 1, "num_workers": 1},
]


@pytest.mark.parametrize("kind", [Template, Early, Methods, PrivateNames])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_subclass_names_do_not_reach_the_engine(kind: Any, settings: dict[str, Any]) -> None:
    plain = stoker.DataLoader(range(20), batch_size=3, **settings)
    theirs = kind(range(20), batch_size=3, **settings)
    for _ in range(2):
        assert batches(theirs) == batches(plain)
    assert len(theirs) == len(plain)
    state = plain.state_dict()
    assert theirs.state_dict() == state
    stoker.DataLoader.load_state_dict(theirs, state)
    plain.load_state_dict(state)
    assert batches(theirs) == batches(plain)
    stoker.DataLoader.close(theirs)
    plain.close()


@pytest.mark.parametrize("kind", [Template, Early])
def test_subclass_attributes_keep_their_values(kind: Any) -> None:
    theirs = kind(range(20), seed=3, on_error="skip")
    batches(theirs)
    assert [getattr(theirs, name) for name in STOKERS] == [f"own {name}" for name in STOKERS]


def test_subclass_properties_and_methods_win_over_options() -> None:
    theirs = Methods(range(4), seed=3, output="numpy")
    assert (theirs.seed, theirs.rank, theirs.output()) == ("own seed", "own rank", "own output")
    assert not {"seed", "rank", "output", "close"} & vars(theirs).keys()
    assert next(iter(theirs)).__class__.__name__ == "ndarray"


def test_options_stay_in_vars_under_their_names() -> None:
    """Lightning and Ignite rebuild a loader from there."""
    given = {"seed": 3, "max_restarts": 2, "on_error": "skip", "output": "numpy"}
    loader = stoker.DataLoader(range(4), **given)  # type: ignore[arg-type]
    assert {name: vars(loader)[name] for name in given} == given
    assert set(STOKERS) | set(TORCHS) - {"multiprocessing_context"} <= vars(loader).keys()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_copies_of_a_subclass_keep_options_and_attributes(copied: Any) -> None:
    theirs = Template(range(20), batch_size=3, seed=3, shuffle=True)
    expected = batches(stoker.DataLoader(range(20), batch_size=3, seed=3, shuffle=True))
    other = copied(theirs)
    assert other.seed == "own seed"
    assert batches(other) == expected


def test_from_torch_reads_options_of_a_subclass_from_its_record() -> None:
    theirs = Template(range(20), batch_size=3, seed=3, shuffle=True)
    again = stoker.DataLoader.from_torch(theirs)
    assert again.seed == 3
    assert batches(again) == batches(theirs)


def test_torch_attributes_set_after_construction_are_obeyed() -> None:
    loader = stoker.DataLoader(range(4), batch_size=2)
    loader.collate_fn = lambda samples: sum(samples)
    loader.num_workers = 1
    assert list(loader) == [1, 5]
