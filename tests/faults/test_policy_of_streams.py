"""The error policy where there are no indices: what can go on is asked for its next sample, what cannot is an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker import ErrorBudgetError, SkipSample, WorkerDiedError
from stoker.errors import StreamLostError
from tests.faults.runs import BACKENDS, crashes, fates, faults_in, loader, plain, raises, story

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::stoker.StokerWarning")]

LENGTH = 40
BACKENDS_HERE = [
    *(None, "one thread", "three threads", "one worker", "two workers"),
    pytest.param("clean workers", marks=pytest.mark.long),  # seconds for each
]
BAD = {5: raises(OSError), 6: raises(SkipSample, "too dark"), 19: raises(ValueError), 30: raises(OSError)}


class Reader:
    """Reads on after an error, as a reader of records does."""

    def __init__(self, faults: Any, first: int, step: int) -> None:
        self._faults = faults
        self._next, self._step = first, step

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> int:
        number, self._next = self._next, self._next + self._step
        if number >= LENGTH:
            raise StopIteration
        if number in self._faults:
            self._faults[number](number)
        return number


class Records(stoker.IterableDataset[Any]):
    """Shares itself out among workers, so that what each reads is known."""

    def __init__(self, faults: Any, generator: bool = False) -> None:
        self._faults = faults
        self._generator = generator

    def __iter__(self) -> Iterator[int]:
        info = stoker.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        reader = Reader(self._faults, first, step)
        return (number for number in reader) if self._generator else reader


def stream(dataset: Any, backend: str | None, **settings: Any) -> Any:
    return loader(dataset, **(BACKENDS[backend] if backend else {}), **settings)


def of_each(batches: list[Any], workers: int) -> list[list[int]]:
    """The samples of each worker's stream, in order."""
    read = [number for batch in batches if isinstance(batch, list) for number in batch]
    return [[number for number in read if number % workers == worker] for worker in range(workers)]


@pytest.mark.parametrize("policy", ["skip", "replace"])
@pytest.mark.parametrize("backend", BACKENDS_HERE)
def test_stream_that_survives_an_error_goes_on(backend: str | None, policy: str, tmp_path: Path) -> None:
    made = stream(Records(BAD), backend, on_error=policy, quarantine=tmp_path / "bad")
    workers = max(1, made.num_workers)
    batches = story(made)
    good = [number for number in range(LENGTH) if number not in BAD]
    assert of_each(batches, workers) == of_each([good], workers)
    counts = fates(made)
    assert counts["planned"] is None
    faults = {fault["position"] * workers + fault["worker"]: fault for fault in _with_workers(tmp_path / "bad")}
    assert faults.keys() == BAD.keys() and all(fault["index"] is None for fault in faults.values())
    if policy == "skip":
        assert (counts["delivered"], counts["quarantined"], counts["skipped"]) == (36, 3, 1)
        assert sum(len(batch) for batch in batches) == 36
        if workers == 1:
            assert [len(batch) for batch in batches] == [4, 2, 4, 4, 3, 4, 4, 3, 4, 4]
    else:
        assert counts["replaced"] + counts["delivered"] == 36
        if workers == 1:
            assert batches == [good[first : first + 4] for first in range(0, 36, 4)]


def _with_workers(path: Path) -> list[dict[str, Any]]:
    return [vars(record) for record in stoker.quarantine(path).records]


@pytest.mark.parametrize("backend", BACKENDS_HERE)
def test_raise_policy_of_a_stream_raises_and_goes_on(backend: str | None) -> None:
    """The batch is an error, and the stream goes on behind it."""
    made = stream(Records({9: raises(OSError)}), backend, shard="none")
    batches = story(made)
    assert batches.count(OSError) == 1
    read = sorted(number for batch in batches if isinstance(batch, list) for number in batch)
    workers = max(1, made.num_workers)
    lost = set(range(LENGTH)) - set(read)
    assert 9 in lost and lost <= set(range(9 - 3 * workers, 10))


@pytest.mark.parametrize("backend", BACKENDS_HERE)
@pytest.mark.parametrize("policy", ["raise", "skip", "replace"])
def test_a_generator_that_raised_is_over(policy: str, backend: str | None) -> None:
    """To leave the sample out would lose the rest without a word."""
    made = stream(Records({9: raises(OSError)}, generator=True), backend, on_error=policy)
    batches = story(made)
    workers = max(1, made.num_workers)
    assert batches.count(OSError if policy == "raise" else StreamLostError) == 1
    theirs = 9 % workers
    streams = of_each(batches, workers)
    for worker in range(workers):
        whole = of_each([list(range(LENGTH))], workers)[worker]
        if worker == theirs:
            assert streams[worker] == whole[: len(streams[worker])] and max(streams[worker], default=0) < 9
        else:
            assert streams[worker] == whole


@pytest.mark.parametrize("backend", [None, "one worker", "two workers"])  # with three it is the last of a batch
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_generator_that_raised_is_over_and_an_error(policy: str, backend: str | None) -> None:
    events: list[Any] = []
    made = stream(Records({9: raises(OSError)}, generator=True), backend, on_error=policy, on_event=events.append)
    with pytest.raises(
        StreamLostError, match=r"a generator that raised OSError .*on_error cannot skip .*MapDataset"
    ) as caught:
        list(made)
    assert "OSError" in f"{caught.value} {caught.value.__cause__!r}"
    assert not [event for event in events if event.kind == "error"]
    assert fates(made)["quarantined"] == 0
    assert fates(made)["raised"] == (2 if backend != "two workers" else 1)  # 8 and 9; of worker 1, behind 1, 3, 5, 7: 9


class Numbers(stoker.IterableDataset[int]):
    """A generator that raises in the place of some."""

    def __init__(self, first: int, length: int, bad: Any = ()) -> None:
        self._numbers, self._bad = range(first, first + length), bad

    def __iter__(self) -> Iterator[int]:
        for number in self._numbers:
            if number in self._bad:
                raise OSError("the file server is away")
            yield number


BELOW: dict[str, Callable[[Any], Any]] = {
    "alone": lambda bad: bad,
    "chain": lambda bad: stoker.ChainDataset([bad, Numbers(100, 9)]),
    "shuffle": lambda bad: stoker.ShuffleDataset(bad, 8),
    "interleave": lambda bad: stoker.InterleaveDataset([bad, Numbers(100, 9)], open_at_once=2),
    "mix": lambda bad: stoker.MixDataset([bad, Numbers(100, 9)], [1, 1], stop="drop"),
    "map": lambda bad: stoker.MapDataset(bad, abs),
    "window": lambda bad: stoker.WindowDataset(bad, 1),
    "zip": lambda bad: stoker.ZipDataset(bad, Numbers(100, 40)),
    "a stream within another": lambda bad: stoker.ChainDataset([stoker.ShuffleDataset(bad, 4), Numbers(100, 9)]),
}


@pytest.mark.parametrize("below", BELOW)
@pytest.mark.parametrize("backend", [None, "one worker", "two workers"])
def test_wrapped_generator_that_raised_is_over(backend: str | None, below: str) -> None:
    """Whatever comes behind its samples: their end is no end of them."""
    made = stream(BELOW[below](Numbers(0, 20, bad=[9])), backend, on_error="skip")
    told = story(made)
    assert told.count(StreamLostError) == 1 and fates(made)["quarantined"] <= 1


@pytest.mark.parametrize("below", BELOW)
def test_lost_generator_stays_lost_after_state_saved_at_error(below: str) -> None:
    made = stream(BELOW[below](Numbers(0, 20, bad=[9])), None, on_error="skip", batch_size=1)
    iterator, told = iter(made), False
    states = [made.state_dict()]
    while not told:
        try:
            next(iterator)
        except StreamLostError:
            told = True
        states.append(made.state_dict())
    again = stream(BELOW[below](Numbers(0, 20, bad=[9])), None, on_error="skip", batch_size=1)
    again.load_state_dict(states[-2])
    assert StreamLostError in story(again)


def test_function_above_a_generator_may_fail() -> None:
    """It is not over: the function is."""

    def picky(number: int) -> int:
        if number == 9:
            raise OSError("cannot be decoded")
        return number

    made = stream(stoker.MapDataset(Numbers(0, 20), picky), None, on_error="skip")
    assert [number for batch in story(made) for number in batch] == [*range(9), *range(10, 20)]


@pytest.mark.parametrize("backend", [None, "one worker"])
def test_a_warning_says_where_in_the_stream(backend: str | None) -> None:
    made = stream(Records({9: raises(OSError)}), backend, on_error="skip")
    with pytest.warns(
        stoker.StokerWarning, match=r"sample 9 of the stream \(worker 0\) failed, and was left out: OSError"
    ):
        story(made)


@pytest.mark.parametrize("backend", BACKENDS_HERE)
@pytest.mark.parametrize("policy", ["raise", "skip", "replace"])
def test_generator_that_raised_skipsample_is_over(policy: str, backend: str | None) -> None:
    """And what to do instead is said."""
    iterator = iter(stream(Records({9: raises(SkipSample)}, generator=True), backend, on_error=policy))
    with pytest.raises(StreamLostError, match=r"generator that raised SkipSample .*9.*`continue`") as caught:
        list(iterator)
    assert "SkipSample" in f"{caught.value} {caught.value.__cause__!r}"


@pytest.mark.parametrize("backend", [None, "one worker"])
def test_a_batch_of_which_nothing_is_left(backend: str | None) -> None:
    bad = dict.fromkeys(range(8, 12), raises(OSError))
    made = stream(Records(bad), backend, on_error="skip")
    assert story(made) == [list(range(first, first + 4)) for first in range(0, LENGTH, 4) if first != 8]
    assert made.report().epoch.batches == 9


@pytest.mark.parametrize("backend", [None, "one worker"])
def test_drop_last_counts_what_was_read(backend: str | None) -> None:
    """A batch that is short for a bad sample is no last batch."""
    made = stream(Records({38: raises(OSError)}), backend, on_error="skip", drop_last=True)
    assert story(made)[-1] == [36, 37, 39]


@pytest.mark.parametrize("backend", [None, "three threads", "two workers"])
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_stream_that_always_raises_ends(policy: str, backend: str | None) -> None:
    bad = dict.fromkeys(range(LENGTH), raises(OSError))
    with pytest.raises(ErrorBudgetError) as caught:
        for _ in stream(Records(bad), backend, on_error=policy, max_errors=3):
            pytest.fail("a batch was delivered")
    assert "image file is truncated" in f"{caught.value} {caught.value.__cause__}"


class ForEver:
    """A reader that has lost its file, and will say so for ever."""

    def __iter__(self) -> ForEver:
        return self

    def __next__(self) -> int:
        raise ConnectionError("the file server is away")


class Lost(stoker.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return ForEver()


@pytest.mark.parametrize("backend", [None, "three threads", "two workers"])
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_stream_that_raises_without_end_hits_the_budget(policy: str, backend: str | None) -> None:
    settings = {"timeout": 10} if backend else {}
    with pytest.raises(ErrorBudgetError) as caught:
        for _ in stream(Lost(), backend, on_error=policy, **settings):
            pytest.fail("a batch was delivered")
    assert "the file server is away" in f"{caught.value} {caught.value.__cause__}"


class Stateful(Records):
    """Can be opened where it stood."""

    _at: int | None = None

    def __iter__(self) -> Any:
        info = stoker.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        self._reader = Reader(self._faults, first if self._at is None else self._at, step)
        self._at = None
        return self._reader

    def state_dict(self) -> dict[str, int]:
        return {"next": self._reader._next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._at = state["next"]


@pytest.mark.parametrize("backend", ["one worker", "two workers"])
@pytest.mark.parametrize("policy", ["raise", "skip", "replace"])
def test_a_sample_that_kills_is_raised_and_its_stream_is_over(policy: str, backend: str) -> None:
    made = stream(Stateful({9: crashes}), backend, on_error=policy)
    iterator, errors, batches = iter(made), [], []
    for _ in range(20):
        try:
            batches.append(plain(next(iterator)))
        except StopIteration:
            break
        except WorkerDiedError as error:
            errors.append(str(error))
    assert len(errors) == 1 and "is killed by signal: Segmentation fault" in errors[0] and "crashes" in errors[0]
    if made.num_workers == 1:
        assert batches == [[0, 1, 2, 3], [4, 5, 6, 7]]
    else:
        assert of_each(batches, 2) == [list(range(0, LENGTH, 2)), [1, 3, 5, 7]]


@pytest.mark.parametrize("backend", BACKENDS_HERE)
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_the_first_and_the_last_are_bad(policy: str, backend: str | None) -> None:
    """Nothing can take the place of the last one."""
    made = stream(Records(dict.fromkeys((0, LENGTH - 1), raises(OSError))), backend, on_error=policy)
    batches = story(made)
    workers = max(1, made.num_workers)
    assert of_each(batches, workers) == of_each([list(range(1, LENGTH - 1))], workers)
    counts = fates(made)
    assert counts["delivered"] + counts["replaced"] == LENGTH - 2
    assert counts["quarantined"] + counts["replaced"] == 2 and counts["quarantined"] >= 1


def test_the_lines_of_a_stream(tmp_path: Path) -> None:
    file = tmp_path / "bad"
    story(stream(Records(BAD), None, on_error="skip", quarantine=file))
    assert [(fault["position"], fault["kind"], fault["outcome"]) for fault in faults_in(file)] == [
        (5, "exception", "skipped"),
        (6, "skip", "skipped"),
        (19, "exception", "skipped"),
        (30, "exception", "skipped"),
    ]
