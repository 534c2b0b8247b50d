"""How many batches a worker makes at once: which loaders may have runs, and how long they are."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import warnings
from typing import Any

import numpy as np
import pytest

import stoker
from stoker._engine.backend import Answer, Cost
from stoker.loader._epoch import runs
from stoker.loader._epoch.runs import CHEAP, LARGEST, LONGEST, RunLength, longest
from stoker.loader.record import options_of


class Squares(stoker.Dataset[int]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        return index * index


class Walked:
    """A sampler that is walked."""

    def __iter__(self) -> Any:
        return iter(range(64))


@pytest.mark.parametrize(
    ("arguments", "most"),
    [
        ({}, LONGEST),
        ({"shuffle": True}, LONGEST),
        ({"worker_method": "thread"}, LONGEST),
        ({"batch_size": None}, LONGEST),
        ({"prefetch_factor": 2}, 2),
        ({"prefetch_factor": 1}, 1),
        ({"prefetch_factor": 99}, LONGEST),
        ({"num_workers": 0}, 1),
        ({"sampler": Walked()}, 1),
        ({"worker_init_fn": print}, 1),
        ({"seeding": "worker"}, 1),
        ({"threads_per_worker": 2}, 1),
        ({"memory_budget": 1 << 30}, 1),
        ({"timeout": 5}, 1),
        ({"max_samples_per_worker": 100}, 1),
        ({"batch_transform": list}, 1),
    ],
)
def test_settings_bound_the_batches_in_a_run(arguments: dict[str, Any], most: int) -> None:
    loader = stoker.DataLoader(Squares(), **{"batch_size": 4, "num_workers": 2, **arguments})
    assert longest(options_of(loader)) == most


@pytest.mark.parametrize(
    ("shuffle", "arguments", "most"),
    [
        (False, {}, LONGEST),
        (True, {}, LONGEST),
        (True, {"generator": True}, 1),
        (True, {"replacement": True}, LONGEST),
    ],
)
@pytest.mark.parametrize("batched_by_torch", [True, False])
def test_torchs_samplers_without_a_generator(
    shuffle: bool, arguments: dict[str, Any], most: int, batched_by_torch: bool
) -> None:
    torch = pytest.importorskip("torch")
    data = torch.utils.data
    if "generator" in arguments:
        arguments = {"generator": torch.Generator()}
    sampler = data.RandomSampler(Squares(), **arguments) if shuffle else data.SequentialSampler(Squares())
    given = {"batch_sampler": data.BatchSampler(sampler, 4, False)} if batched_by_torch else {"sampler": sampler}
    assert longest(options_of(stoker.DataLoader(Squares(), num_workers=2, **given))) == most
    for other in (type("Mine", (type(sampler),), {})(Squares()), iter(sampler)):
        given = {"batch_sampler": data.BatchSampler(other, 4, False)} if batched_by_torch else {"sampler": other}
        assert longest(options_of(stoker.DataLoader(Squares(), num_workers=2, **given))) == 1


class Following(Squares):
    """Holds what the loop may write."""

    def __init__(self, held: object) -> None:
        self.held = held


@pytest.mark.leaves_behind("multiprocessing keeps its heap of shared values")
def test_memory_that_the_loop_may_write_has_no_runs() -> None:
    torch = pytest.importorskip("torch")
    context = multiprocessing.get_context("fork")
    small, large = torch.zeros(1).share_memory_(), torch.zeros(1 << 16).share_memory_()
    for held in (context.Value("i"), [context.RawArray("d", 2)], {"on": context.Event()}, small, lambda: small):
        assert longest(options_of(stoker.DataLoader(Following(held), num_workers=1))) == 1
        assert longest(options_of(stoker.DataLoader(Squares(), num_workers=1, collate_fn=Following(held)))) == 1
    for held in (torch.zeros(1), large, torch.eye(2).to_sparse(), threading.Event(), np.zeros(3)):
        assert longest(options_of(stoker.DataLoader(Following(held), num_workers=1))) == LONGEST


def test_a_stream_has_no_runs() -> None:
    loader = stoker.DataLoader(stoker.from_iterable(range, 9), num_workers=1)
    assert longest(options_of(loader)) == 1


def test_prefetch_factor_that_is_set_later_bounds_runs() -> None:
    loader = stoker.DataLoader(Squares(), num_workers=2)
    loader.prefetch_factor = 3
    assert longest(options_of(loader)) == 3


def answer(seconds: float, batches: int = 1, size: int | None = 100, value: Any = None, kind: Any = "batch") -> Answer:
    return Answer(0, kind, value, 0, cost=Cost(batches, seconds, None if size is None else size * batches))


def lengths(*answers: Answer, most: int = LONGEST) -> list[int]:
    length = RunLength(most)
    found = [length.now]
    for each in answers:
        length.learn(each)
        found.append(length.now)
    return found


def test_runs_of_cheap_batches_double_up_to_the_longest() -> None:
    assert lengths(*[answer(1e-4)] * 5) == [1, 2, 4, 8, 16, 16]
    assert lengths(*[answer(1e-4)] * 3, most=3) == [1, 2, 3, 3]


def test_runs_of_costly_batches_halve() -> None:
    costly = answer(2 * CHEAP)
    assert lengths(*[answer(1e-4)] * 3, costly, costly, costly, costly) == [1, 2, 4, 8, 4, 2, 1, 1]
    assert lengths(costly) == [1, 1]


def test_runs_take_less_time_than_workers_work_on_them() -> None:
    assert lengths(*[answer(0.9e-3)] * 4) == [1, 2, 4, 4, 4]


def test_runs_of_threads_hold_a_megabyte_or_one_batch() -> None:
    batch = np.zeros(LARGEST // 5, np.uint8)
    assert lengths(*[answer(1e-4, size=None, value=batch)] * 4) == [1, 2, 4, 5, 5]
    assert lengths(answer(1e-4, size=None, value=np.zeros(2 * LARGEST, np.uint8))) == [1, 1]


def test_runs_of_processes_hold_a_megabyte_or_one_batch() -> None:
    assert lengths(*[answer(1e-4, size=LARGEST // 16)] * 4) == [1, 2, 4, 8, 16]
    assert lengths(*[answer(1e-4, size=LARGEST // 8)] * 4) == [1, 2, 4, 8, 8]
    assert lengths(*[answer(1e-4, size=LARGEST)] * 2) == [1, 1, 1]


@pytest.mark.parametrize(
    ("value", "grows"),
    [
        (np.zeros(9), True),
        ({"a": [1, "text", b"", None, 1.5], "b": (np.zeros(2),)}, True),
        (np.zeros(LARGEST), False),
        ([np.zeros(LARGEST // 32), np.zeros(LARGEST // 16)], False),
        (object(), False),
        ([object()], False),
        (np.array([{}]), False),
    ],
)
def test_batches_of_unknown_or_large_size_are_single(value: Any, grows: bool) -> None:
    """Threads do not know the sizes of their batches."""
    assert (lengths(answer(1e-4, size=None, value=value))[-1] > 1) == grows


def test_answers_that_say_nothing_change_nothing() -> None:
    length = RunLength(LONGEST)
    length.learn(Answer(0, "batch", None, 0))
    assert length.now == 1


def test_forced_runs_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "FORCED", 5)
    assert lengths(answer(1.0)) == [5, 5] and lengths(answer(1.0), most=2) == [2, 2]


def test_batches_without_a_known_size() -> None:
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that nested tensors are a prototype
        nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    endless: list[object] = []
    endless.append(endless)
    for batch in (torch.eye(3).to_sparse(), nested, endless, object(), [np.array([None])]):
        assert runs._bytes_of(batch) is None
    assert runs._bytes_of({"x": (torch.zeros(3), np.zeros(2))}) == 28 + sys.getsizeof("x")
