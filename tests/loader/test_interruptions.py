"""Ctrl-C, or a handler that raises, at every line of ours within `next()`: no batch is lost, none comes twice."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.collate import registry
from stoker.errors import IteratorClosedError
from stoker.loader._random import sample_seeding

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
OURS = str(Path(stoker.__file__).parent)
BATCHES = 6
RETURNS = ("delivered", "_received", "received", "streamed", "_next", "__next__")
"""Where a batch counts as received and is not yet the user's: Python returns it in the next step."""


class Watchdog(Exception):
    pass


def barks(*_: Any) -> None:
    raise Watchdog


class Samples(stoker.Dataset[Any]):
    def __len__(self) -> int:
        return 2 * BATCHES

    def __getitem__(self, index: int) -> Any:
        return np.full(300, index)


class Stream(stoker.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return (np.full(300, index) for index in range(2 * BATCHES))


class Walked:
    """A sampler that can only be iterated over."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(2 * BATCHES))

    def __len__(self) -> int:
        return 2 * BATCHES


class At:
    """Raises at the n-th line of ours that the main thread comes to within `with`, and says which it was."""

    def __init__(self, number: int, exception: Callable[[], None]) -> None:
        self._left = number
        self._raise = exception
        self.where = ""

    def __enter__(self) -> At:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: Any) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "line":
            self._left -= 1
            if self._left == 0:
                sys.settrace(None)
                self.where = frame.f_code.co_name
                self._raise()
        return self._trace


def interrupted() -> None:
    raise KeyboardInterrupt


def signalled() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


@pytest.fixture
def watchdog() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, barks)
    yield
    signal.signal(signal.SIGUSR1, before)


CASES: dict[str, dict[str, Any]] = {
    "serial": {"dataset": Samples()},
    "serial, a stream": {"dataset": Stream()},
    "serial, walked": {"dataset": Samples(), "sampler": Walked()},
    "a thread": {"dataset": Samples(), "num_workers": 1, "worker_method": "thread"},
    "a process": {"dataset": Samples(), "num_workers": 1, "multiprocessing_context": "fork"},
}


def numbers(batch: Any) -> list[int]:
    return [int(row[0]) for row in batch]


def story(case: str, number: int, exception: Callable[[], None], is_first: bool = False) -> tuple[list[int], str, int]:
    """A loop that is interrupted once, in its first or second `next()`, and goes on as it may: the samples that it got,
    where it was interrupted, and how many samples were raised."""
    loader = stoker.DataLoader(**CASES[case], batch_size=2, output="numpy", shard="none")
    iterator = iter(loader)
    seen = [] if is_first else numbers(next(iterator))
    at = At(number, exception)
    try:
        with at:
            batch = next(iterator)
        seen += numbers(batch)
    except (KeyboardInterrupt, Watchdog):
        pass
    try:
        for batch in iterator:
            seen += numbers(batch)
    except IteratorClosedError as error:
        assert "interrupted next() in the middle" in str(error)
        with stoker.DataLoader(**CASES[case], batch_size=2, output="numpy", shard="none") as again:
            again.load_state_dict(loader.state_dict())
            seen += [number for batch in again for number in numbers(batch)]
    iterator.close()
    assert stoker.get_worker_info() is None
    return seen, at.where, loader.report().epoch.raised


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Stream cannot say where it stands")
@pytest.mark.parametrize("exception", [interrupted, signalled])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("watchdog")
def test_at_some_lines(case: str, exception: Callable[[], None]) -> None:
    check(case, exception, step=14 if "process" in case else 3)


@pytest.mark.long
@pytest.mark.timeout(600)  # a loader with a process for each line
@pytest.mark.filterwarnings("ignore:Stream cannot say where it stands")
@pytest.mark.parametrize("exception", [interrupted, signalled])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("watchdog")
def test_at_each_and_every_line(case: str, exception: Callable[[], None]) -> None:
    check(case, exception, step=1)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["serial", "serial, walked", "a thread"])
def test_at_some_lines_of_the_first_call(case: str) -> None:
    check(case, interrupted, step=11, is_first=True)


def check(case: str, exception: Callable[[], None], step: int, is_first: bool = False) -> None:
    """At each line, or at one of several: another one for each exception."""
    lines = []
    for number in range(1 + (exception is signalled) % step, 100_000, step):
        seen, where, raised = story(case, number, exception, is_first)
        if not where:
            break
        lines.append(where)
        missing = sorted(set(range(2 * BATCHES)) - set(seen))
        assert len(seen) == len(set(seen)), (number, where, seen)
        # What a handler raises within a sample is the sample's error: so one bounds a sample's time
        due = [0, 1] if is_first else [2, 3]
        assert not missing or (missing == due and (where in RETURNS or raised == 2)), (number, where, seen)
    assert len(lines) * step > 50


class Item:
    """Is collated by a function of the user's."""


def once(values: Any) -> Any:
    """Returns the values; at the second batch a handler raises first, as a program does that bounds its time."""
    calls.append(1)
    if len(calls) == 2:
        signalled()
    return values


calls: list[int] = []


class Items(Samples):
    def __getitem__(self, index: int) -> Any:
        return Item()


class Gathered(Samples):
    stoker_protocol = True

    def __getitem__(self, index: int) -> Any:
        return index

    def gather_layout(self) -> Any:
        return np.empty(0, np.int64)

    def gather(self, indices: Any, out: Any) -> None:
        out[...] = once(indices)


class Standing(stoker.IterableDataset[Any]):
    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < 2 * BATCHES:
            self.at += 1
            yield self.at

    def state_dict(self) -> Any:
        return once({"at": self.at})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


@pytest.mark.usefixtures("watchdog")
@pytest.mark.parametrize("dataset", [Items, Gathered, Standing])
def test_what_a_handler_raises_beside_samples_reaches_the_loop(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.default_collate_fn_map, Item, lambda batch, **_: once(len(batch)))
    calls.clear()
    loader: stoker.DataLoader[Any] = stoker.DataLoader(dataset(), batch_size=2, output="numpy")
    with pytest.raises(Watchdog):
        for _ in loader:
            if dataset is Standing:
                loader.state_dict()
    assert len(calls) == 2 or dataset is Standing


def test_a_batch_that_cannot_be_opened_is_raised_and_counted_so() -> None:
    loader = stoker.DataLoader(
        range(12), batch_size=2, num_workers=2, collate_fn=Opened, multiprocessing_context="fork"
    )
    iterator, seen, errors = iter(loader), [], []
    while True:
        try:
            seen.append(next(iterator).values)
        except ValueError as error:
            errors.append(error)
        except StopIteration:
            break
    assert seen == [[0, 1], [2, 3], [6, 7], [8, 9], [10, 11]] and [str(error) for error in errors] == ["not here"]
    counts = loader.report().epoch
    assert (counts.delivered, counts.raised, counts.batches) == (10, 2, 5)
    assert "when batch 2 was opened" in errors[0].__notes__[0]


class Opened:
    """A batch whose class refuses to be made in another process than the worker."""

    def __init__(self, values: list[int], maker: int = 0) -> None:
        self.values, self.maker = values, maker or os.getpid()
        if self.values[0] == 4 and self.maker != os.getpid():
            raise ValueError("not here")

    def __reduce__(self) -> Any:
        return Opened, (self.values, self.maker)


class Bounded:
    """A stream whose third sample takes longer than the program allows for each."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Bounded:
        return self

    def __next__(self) -> int:
        self.at += 1
        if self.at == 3:
            signalled()
        if self.at > 2 * BATCHES:
            raise StopIteration
        return self.at


class BoundedStream(stoker.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return Bounded()


@pytest.mark.usefixtures("watchdog")
@pytest.mark.filterwarnings("ignore:sample 2 of the stream", "ignore:BoundedStream cannot say where it stands")
def test_sample_that_a_handler_ended_is_left_out_again() -> None:
    how: dict[str, Any] = {"batch_size": 2, "output": "numpy", "on_error": "skip", "max_errors": 2}
    loader = stoker.DataLoader(BoundedStream(), **how)
    iterator = iter(loader)
    seen = [next(iterator).tolist(), next(iterator).tolist()]
    state = loader.state_dict()
    rest = [batch.tolist() for batch in iterator]
    resumed = stoker.DataLoader(BoundedStream(), **how)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == rest
    assert [number for batch in seen + rest for number in batch] == [1, 2, *range(4, 2 * BATCHES + 1)]


class Row(Mapping[str, int]):
    """A sample that is read when it is converted."""

    def __getitem__(self, key: str) -> int:
        calls.append(1)
        if len(calls) == 3000:  # the loader has learned by then that these samples are cheap, and takes the short path
            signalled()
        return 7

    def __iter__(self) -> Iterator[str]:
        return iter(["x"])

    def __len__(self) -> int:
        return 1


class Rows(Samples):
    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> Any:
        return Row()


@pytest.mark.usefixtures("watchdog")
def test_what_a_handler_raises_in_a_conversion_reaches_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_seeding, "_DEAR", 1e9)  # also on a busy machine
    calls.clear()
    with pytest.raises(Watchdog):
        list(stoker.DataLoader(Rows(), batch_size=None, output="numpy"))


@pytest.mark.parametrize("how", [{}, {"num_workers": 2, "worker_method": "thread"}], ids=["serial", "threads"])
def test_concurrent_next_calls_are_an_error(how: dict[str, Any]) -> None:
    """The other gets an error, where both would get each other's batches, or wait for ever."""
    inside, leave = threading.Event(), threading.Event()

    class Waits(Samples):
        def __getitem__(self, index: int) -> Any:
            inside.set()
            assert leave.wait(10)
            return super().__getitem__(index)

    iterator = iter(stoker.DataLoader(Waits(), batch_size=2, output="numpy", **how))
    seen: list[Any] = []
    first = threading.Thread(target=lambda: seen.append(next(iterator)))
    first.start()
    assert inside.wait(10)
    with pytest.raises(stoker.errors.IteratorBusyError, match="in another thread"):
        next(iterator)
    leave.set()
    first.join()
    assert [number for batch in [*seen, *iterator] for number in numbers(batch)] == list(range(2 * BATCHES))


def test_a_listener_that_asks_for_a_batch() -> None:
    def listener(event: Any) -> None:
        next(iterator)

    class Bad(Samples):
        def __getitem__(self, index: int) -> Any:
            if index == 5:
                raise OSError("bad")
            return super().__getitem__(index)

    iterator = iter(
        stoker.DataLoader(Bad(), batch_size=2, output="numpy", on_error="skip", max_errors=5, on_event=listener)
    )
    seen = [next(iterator), next(iterator)]
    with pytest.raises(stoker.errors.IteratorBusyError, match="on_event"):
        next(iterator)
    seen += iterator
    assert [number for batch in seen for number in numbers(batch)] == [0, 1, 2, 3, 4, *range(6, 12)]
