"""A worker or the zygote dies or hangs, and none is to be survived: the trainer says who, how and doing what, in the
words of torch's loader."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stoker import DataLoader, errors
from stoker._engine.fork import trainer

DEATHS: dict[str, tuple[Callable[[], object], str]] = {
    "SIGKILL": (lambda: os.kill(os.getpid(), signal.SIGKILL), "is killed by signal: Killed"),
    "SIGTERM": (lambda: os.kill(os.getpid(), signal.SIGTERM), "is killed by signal: Terminated"),
    "SIGSEGV": (lambda: os.kill(os.getpid(), signal.SIGSEGV), "is killed by signal: Segmentation fault"),
    "SIGBUS": (lambda: os.kill(os.getpid(), signal.SIGBUS), "is killed by signal: Bus error"),
    "abort": (os.abort, "is killed by signal: Aborted"),
    "os._exit": (lambda: os._exit(3), "exited unexpectedly with exit code 3"),
    "sys.exit": (lambda: sys.exit(4), "exited unexpectedly with exit code 4"),
    "sys.exit with words": (lambda: sys.exit("no such file"), "SystemExit: no such file"),
    "sys.exit without a word": (lambda: sys.exit(), "exited unexpectedly with exit code 0"),
    "exit of another thread": (lambda: _in_a_thread(lambda: os._exit(5)), "exited unexpectedly with exit code 5"),
}


def _in_a_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


class Dies:
    """From sample 6 on."""

    def __init__(self, how: Callable[[], object]) -> None:
        self._how = how

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        if index >= 6:
            self._how()
        return np.full(20_000, index)


def loader(dataset: Any, **settings: Any) -> Any:
    default = {"batch_size": 2, "num_workers": 2, "output": "numpy", "multiprocessing_context": "fork"}
    return DataLoader(dataset, **default | {"max_restarts": 0} | settings)


@pytest.mark.parametrize("death", DEATHS)
def test_dead_worker_is_an_error_without_restarts(death: str) -> None:
    how, told = DEATHS[death]
    iterator = iter(loader(Dies(how)))
    with pytest.raises(RuntimeError, match=r"^DataLoader worker \(pid\(s\) \d+\) exited unexpectedly") as caught:
        for _ in range(4):
            next(iterator)
    assert isinstance(caught.value, errors.WorkerDiedError)
    assert told in str(caught.value) and str(caught.value).splitlines()[0].count("exited unexpectedly") == 1
    assert re.search(r"worker [01], and ended while it made batch [345]", str(caught.value)), str(caught.value)


@pytest.mark.parametrize(
    ("death", "advice"),
    [
        ("SIGKILL", "out of memory"),
        ("SIGSEGV", "from a library in C"),
        ("SIGBUS", "/dev/shm"),
        ("os._exit", r"os\._exit"),
        ("SIGTERM", ""),
    ],
)
def test_the_advice_is_for_what_happened(death: str, advice: str) -> None:
    with pytest.raises(errors.WorkerDiedError) as caught:
        list(loader(Dies(DEATHS[death][0])))
    told = str(caught.value)
    others = [other for other in ("out of memory", "from a library in C", "/dev/shm", r"os\._exit") if other != advice]
    assert re.search(advice, told) and not any(re.search(other, told) for other in others)


def test_words_that_a_worker_leaves_with(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(errors.WorkerDiedError, match="exit code 1") as caught:
        list(loader(Dies(lambda: sys.exit("no such file"))))
    assert "no such file" in capfd.readouterr().err
    assert "in __getitem__" in str(caught.value), "where it was called"


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
@pytest.mark.parametrize("birth", ["fork", "forkserver"])
@pytest.mark.parametrize("most", [0, 1])
def test_error_of_the_last_death_lists_the_earlier_deaths(birth: str, most: int) -> None:
    heard: list[Any] = []
    made = loader(
        Dies(DEATHS["SIGTERM"][0]),
        num_workers=1,
        max_restarts=most,
        on_event=heard.append,
        multiprocessing_context=birth,
    )
    with pytest.raises(errors.WorkerDiedError) as caught:
        list(made)
    deaths = [event for event in heard if event.kind == "death"]
    assert [event.details.get("ends", False) for event in deaths] == [False] * most + [True]
    assert made.report().event_counts["death"] == most + 1
    assert all((event.batch, event.details["index"], event.worker) == (3, 6, 0) for event in deaths)
    before = re.findall(
        "- worker 0 is killed by signal: Terminated, while it made batch 3, sample 6", str(caught.value)
    )
    assert len(before) == most
    if most:
        assert f"{most + 1} workers have died within ten minutes" in str(caught.value)


def test_first_death_that_ends_the_run_gives_no_warning() -> None:
    with warnings.catch_warnings(), pytest.raises(errors.WorkerDiedError):
        warnings.simplefilter("error")
        list(loader(Dies(DEATHS["SIGKILL"][0])))


def test_worker_is_killed_while_idle() -> None:
    iterator = iter(loader(Dies(lambda: None), prefetch_factor=1))
    next(iterator)
    os.kill(iterator._backend.pids[1], signal.SIGKILL)
    with pytest.raises(errors.WorkerDiedError, match="is killed by signal: Killed"):
        for _ in iterator:
            pass


def test_cause_of_death_is_known_when_sigchld_is_ignored() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(errors.WorkerDiedError, match="is killed by signal: Terminated"):
            for _ in loader(Dies(DEATHS["SIGTERM"][0])):
                pass
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_crash_of_a_clean_worker() -> None:
    dataset = [np.full(20_000, index) for index in range(8)]
    iterator = iter(loader(dataset, multiprocessing_context="forkserver", collate_fn=_crash))
    with pytest.raises(errors.WorkerDiedError, match="is killed by signal: Segmentation fault"):
        next(iterator)


_crash = eval("lambda samples: __import__('ctypes').string_at(0)", {"__name__": "__main__"})


def test_sys_exit_in_a_worker_thread() -> None:
    iterator = iter(loader(Dies(lambda: sys.exit(4)), worker_method="thread", multiprocessing_context=None))
    with pytest.raises(errors.WorkerDiedError, match="exited unexpectedly"):
        for _ in iterator:
            pass


def test_zygote_is_killed() -> None:
    iterator = iter(loader(Dies(lambda: None)))
    next(iterator)
    zygote = iterator._backend.pids[0]
    os.kill(zygote, signal.SIGKILL)
    with pytest.raises(
        errors.WorkerDiedError, match=rf"exited unexpectedly: the helper process \(pid {zygote}\).* Killed"
    ):
        for _ in iterator:
            pass


def test_hung_zygote_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "PULSE", 0.05)
    monkeypatch.setattr(trainer, "HUNG", 0.3)
    iterator = iter(loader(Dies(lambda: None)))
    next(iterator)
    os.kill(iterator._backend.pids[0], signal.SIGSTOP)
    with pytest.raises(errors.WorkerDiedError, match=r"no sign of life for 0\.3 s"):
        for _ in iterator:
            pass


def test_slow_workers_do_not_make_the_zygote_look_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "PULSE", 0.05)
    monkeypatch.setattr(trainer, "HUNG", 1.0)
    ear, mouth = os.pipe()
    iterator = iter(loader(Dies(lambda: os.read(ear, 1))))
    timer = threading.Timer(1.3, lambda: os.write(mouth, bytes(100)))
    timer.start()
    assert sum(1 for _ in iterator) == 10
    timer.join()
    os.close(ear)
    os.close(mouth)


def test_timeout_shows_where_the_workers_are() -> None:
    iterator = iter(loader(Dies(signal.pause), timeout=0.3))
    for _ in range(3):
        next(iterator)
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.3 seconds") as caught:
        next(iterator)
    assert isinstance(caught.value, errors.LoaderTimeoutError)
    story = str(caught.value)
    assert re.search(r"Worker 0 \(pid \d+\)", story) and re.search(r"Worker 1 \(pid \d+\)", story)
    assert "test_deaths.py" in story and "__getitem__" in story


def test_timeout_before_the_workers_can_answer_kills_none() -> None:
    """The signal that asks for stacks ends a process that has not yet said what to do with it."""
    iterator = iter(loader(Dies(lambda: None), timeout=1e-4))
    delivered = 0
    until = time.monotonic() + 20
    while delivered < 10 and time.monotonic() < until:
        try:
            next(iterator)
            delivered += 1
        except errors.LoaderTimeoutError:
            pass
    assert delivered == 10


def test_interrupted_serial_epoch_goes_on_where_it_was() -> None:
    def once() -> None:
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt

    interrupted: list[bool] = []
    iterator = iter(loader(Dies(once), num_workers=0, multiprocessing_context=None))
    numbers = []
    while True:
        try:
            numbers.append(next(iterator)[0, 0])
        except KeyboardInterrupt:
            continue
        except StopIteration:
            break
    assert interrupted and numbers == list(range(0, 20, 2))
