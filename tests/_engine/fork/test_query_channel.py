"""Any thread may ask for reports at any time; waiting for a batch is not disturbed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker._engine.fork.zygote_handle import QueryChannel
from stoker._engine.messages import AskStacks, ReportAnswer
from stoker._engine.process.channel import Channel, pair


@pytest.fixture
def ends() -> Iterator[tuple[QueryChannel, Channel]]:
    ours, theirs = pair()
    inquiry, zygote = QueryChannel(Channel(ours)), Channel(theirs)
    yield inquiry, zygote
    inquiry.close()
    zygote.close()


def test_late_answer_is_dropped(ends: tuple[QueryChannel, Channel]) -> None:
    inquiry, zygote = ends
    assert inquiry.ask(AskStacks, 0.01) is None
    zygote.send(ReportAnswer(1, "of the first"))
    zygote.send(ReportAnswer(2, "of the second"))
    assert inquiry.ask(AskStacks, 5) == "of the second"
    assert zygote.receive() == [AskStacks(1), AskStacks(2)]


def test_question_during_a_question_does_not_block(ends: tuple[QueryChannel, Channel]) -> None:
    inquiry, zygote = ends
    inner: list[Any] = []

    def handler(number: int, frame: Any) -> None:
        inner.append(inquiry.ask(AskStacks, 0.01))
        zygote.send(ReportAnswer(1, "an answer"))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert inquiry.ask(AskStacks, 30) == "an answer"
    finally:
        signal.signal(signal.SIGALRM, before)
    assert inner == [None]


def test_ended_process_is_not_asked(ends: tuple[QueryChannel, Channel]) -> None:
    inquiry, zygote = ends
    zygote.close()
    assert inquiry.ask(AskStacks, 60) is None
    inquiry.close()
    assert inquiry.ask(AskStacks, 60) is None


class Waits:
    """A sample waits until a file is there."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        while not self.file.exists():
            time.sleep(0.001)
        return index


def test_a_handler_reports_while_a_batch_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "go"
    loader: Any = stoker.DataLoader(Waits(file), 2, num_workers=1, output="numpy")
    reports: list[Any] = []

    def handler(number: int, frame: Any) -> None:
        reports.append(loader.report(stacks=True))
        file.touch()

    before = signal.signal(signal.SIGALRM, handler)
    try:
        batches = iter(loader)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        assert [list(batch) for batch in batches] == [[0, 1], [2, 3]]
    finally:
        signal.signal(signal.SIGALRM, before)
    assert "__getitem__" in reports[0].stacks
    assert reports[0].memory["1 workers"] > 0


class FromAfar:
    """Samples that wait: faulthandler of CPython 3.13 now and then crashes where frames change while it writes them."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> int:
        time.sleep(0.001)
        return index


@pytest.mark.filterwarnings("ignore:DataLoader worker:stoker.StokerWarning")  # of such a crash: nothing is lost by it
def test_threads_report_while_batches_are_taken() -> None:
    loader: Any = stoker.DataLoader(FromAfar(), 1, num_workers=2, output="numpy", max_restarts=1000)
    ended, wrong, stacks, taken = threading.Event(), [], [], []

    def watch() -> None:
        while not ended.is_set():
            try:
                stacks.append(loader.report(stacks=True).stacks)
            except BaseException as error:  # it is asserted on below
                wrong.append(error)
                return

    watchers = [threading.Thread(target=watch) for _ in range(2)]
    try:
        with iter(loader) as batches:
            taken.append(int(next(batches)[0]))
            for watcher in watchers:
                watcher.start()
            while len(stacks) < 10 and not wrong:
                taken.append(int(next(batches)[0]))
    finally:
        ended.set()
        for watcher in watchers:
            watcher.join()
    assert not wrong
    assert all("Worker 0" in text for text in stacks[:10])
    assert taken == list(range(len(taken)))


def test_ended_iterator_has_nothing_to_report() -> None:
    """As a watcher finds it who had the backend just before."""
    batches: Any = iter(stoker.DataLoader(range(8), 2, num_workers=1, output="numpy"))
    next(batches)
    backend = batches._backend
    assert backend.memory()["batches"] >= 0 < backend.memory()["helper process"]
    batches.close()
    assert backend.memory() == {"batches": 0, "helper process": 0, "1 workers": 0}
    assert backend.stacks() == "(the workers' stacks could not be read)"


class Dies:
    """A worker ends at a sample, once; the next one notes when it is made again."""

    def __init__(self, folder: Path) -> None:
        self.died, self.again = folder / "died", folder / "again"

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if index == 2 and not self.died.exists():
            self.died.touch()
            os._exit(3)
        if index == 2:
            (self.again.parent / "note").write_text(str(time.time()))
            (self.again.parent / "note").rename(self.again)
        return index


@pytest.mark.filterwarnings("ignore:DataLoader worker:stoker.StokerWarning")
def test_an_event_has_the_time_when_it_happened(tmp_path: Path) -> None:
    events: list[Any] = []
    dies = Dies(tmp_path)
    how: dict[str, Any] = {"num_workers": 1, "prefetch_factor": 4, "output": "numpy", "on_event": events.append}
    with iter(stoker.DataLoader(dies, 1, **how)) as batches:
        next(batches)
        while not dies.again.exists():  # a long step, in which no message is read
            os.sched_yield()
        assert len(list(batches)) == 3
    (death,) = [event for event in events if event.kind == "death"]
    assert death.time < float(dies.again.read_text())
