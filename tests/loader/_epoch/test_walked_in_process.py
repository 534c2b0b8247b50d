"""A sampler that is iterated over, without workers: the short path gives what the long one gives, and asks as often."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import stoker
from stoker.errors import StokerError
from stoker.loader import iterator
from stoker.loader._random import sample_seeding
from stoker.loader._random.sample_seeding import _PROBES

N = _PROBES + 1000
BATCH = 20


@pytest.fixture(autouse=True)
def samples_are_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a busy machine: all generators would stay seeded for dear ones, which need the long path."""
    monkeypatch.setattr(sample_seeding, "_DEAR", 1e9)


class Noted:
    """Samples of an index each; notes what it is asked for. From `late` on they fail, draw or are of another kind."""

    def __init__(self, late: Callable[[int], Any] | None = None) -> None:
        self.asked: list[Any] = []
        self.late = late

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return index if self.late is None or index < N - 70 else self.late(index)


class Given:
    """An order that draws from Python's generator, and notes how far it has been walked."""

    def __init__(self, batched: bool = False, kind: Any = list, error_at: int | None = None) -> None:
        self.batched, self.kind, self.error_at = batched, kind, error_at
        self.walked = 0

    def __iter__(self) -> Iterator[Any]:
        order = random.sample(range(100), 100) + list(range(100, N))
        for number in range(0, N, BATCH if self.batched else 1):
            if number == self.error_at:
                raise ValueError("of the sampler")
            self.walked += 1
            yield self.kind(order[number : number + BATCH]) if self.batched else order[number]
            random.random()


class Resumable(Given):
    """The same with a state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < N:
            self.at += 1
            self.walked += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def drawing(index: int) -> float:
    return index + random.random()


def failing(index: int) -> int:
    if index == N - 33:
        raise ValueError("of the dataset")
    return index


SAMPLERS: dict[str, Callable[[], tuple[Given, dict[str, Any]]]] = {
    "sampler": lambda: ((s := Given()), {"sampler": s, "batch_size": BATCH}),
    "sampler, the last batch dropped": lambda: ((s := Given()), {"sampler": s, "batch_size": 39, "drop_last": True}),
    "sampler with a state": lambda: ((s := Resumable()), {"sampler": s, "batch_size": BATCH}),
    "sampler, not batched": lambda: ((s := Given()), {"sampler": s, "batch_size": None}),
    "batch sampler": lambda: ((s := Given(batched=True)), {"batch_sampler": s}),
    "batch sampler of tuples": lambda: ((s := Given(batched=True, kind=tuple)), {"batch_sampler": s}),
    "sampler that fails": lambda: ((s := Given(error_at=N - 40)), {"sampler": s, "batch_size": BATCH}),
}
LATE = {"plain": None, "drawing": drawing, "failing": failing, "of another kind": str}


def course(sampler: str, late: str, states_every: int) -> tuple[list[Any], int]:
    """Returns what a program sees step by step, and the batches that came by the short path."""
    random.seed(5)
    walked, settings = SAMPLERS[sampler]()
    dataset = Noted(LATE[late])
    loader: Any = stoker.DataLoader(dataset, output="numpy", seed=3, **settings)
    seen, short = [], 0
    for _ in range(2):
        batches = iter(loader)
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                break
            except (ValueError, StokerError) as error:
                seen.append(str(error))
                if len(seen) > 5000 or "sampler" in str(error):
                    break
                continue
            short += batches._short is not None
            state = loader.state_dict() if len(seen) % states_every == 0 else None
            seen.append((str(batch), len(dataset.asked), walked.walked, random.getstate()[1][-1], str(state)))
    return seen, short


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_each_step_is_that_of_the_long_path(sampler: str, late: str, monkeypatch: pytest.MonkeyPatch) -> None:
    got, short = course(sampler, late, 7)
    monkeypatch.setattr(iterator, "short_path", lambda *given: None)
    expected, none = course(sampler, late, 7)
    assert got == expected and none == 0
    assert short > 5


@pytest.mark.parametrize("sampler", ["sampler", "sampler with a state", "batch sampler"])
def test_a_state_of_the_short_path_resumes(sampler: str) -> None:
    _, settings = SAMPLERS[sampler]()
    loader: Any = stoker.DataLoader(Noted(), output="numpy", seed=3, **settings)
    batches = iter(loader)
    short = 0
    for _ in range(80):
        next(batches)
        short += batches._short is not None
    assert short
    state, rest = loader.state_dict(), [batch.tolist() for batch in batches]
    _, settings = SAMPLERS[sampler]()
    other: Any = stoker.DataLoader(Noted(), output="numpy", seed=3, **settings)
    other.load_state_dict(state)
    assert [batch.tolist() for batch in other] == rest


def test_an_interrupted_batch_comes_again() -> None:
    dataset = Noted()
    loader: Any = stoker.DataLoader(dataset, BATCH, sampler=Given(), output="numpy")
    batches = iter(loader)
    seen, short = [], 0
    for _ in range(80):
        seen.append(next(batches).tolist())
        short += batches._short is not None
    assert short

    def interrupted(index: int) -> int:
        dataset.late = None
        raise KeyboardInterrupt

    dataset.late = interrupted
    while dataset.late is not None:
        try:
            seen.append(next(batches).tolist())
        except KeyboardInterrupt:
            break
    seen += [batch.tolist() for batch in batches]
    assert sorted(index for batch in seen for index in batch) == list(range(N))
