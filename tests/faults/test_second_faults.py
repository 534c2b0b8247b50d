"""A second fault while the first is made good, and answers of those who were given up."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker._engine.fork import trainer, zygote
from stoker._engine.process import linux, process_setup
from tests.faults.runs import (
    BACKENDS,
    CALM,
    N,
    Once,
    Samples,
    fates,
    faults_in,
    indices,
    is_killed,
    loader,
    plain,
    raises,
    story,
)

pytestmark = pytest.mark.filterwarnings("ignore::stoker.StokerWarning")

FORKED = BACKENDS["two workers"]
ALONE = FORKED | {"num_workers": 1}
"""One worker, without whose replacement no epoch ends."""


class TestASecondFault:
    def test_the_replacement_dies_at_once(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        born = process_setup.worker
        first, second = tmp_path / "first", tmp_path / "second"

        def dies(*arguments: Any) -> None:
            if first.exists():
                Once(second, is_killed)(None)
            born(*arguments)

        monkeypatch.setattr(process_setup, "worker", dies)
        made = loader(Samples({9: Once(first, is_killed)}), **ALONE)
        assert indices(story(made)) == CALM and second.exists()
        assert made.report().event_counts == {"death": 2}

    def test_the_zygote_dies_while_it_replaces(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        fork = zygote.Zygote._fork

        def dies(self: Any, number: int) -> None:
            if (tmp_path / "first").exists():
                Once(tmp_path / "second", is_killed)(None)
            fork(self, number)

        monkeypatch.setattr(zygote.Zygote, "_fork", dies)
        made = loader(Samples({9: Once(tmp_path / "first", is_killed)}), **ALONE)
        assert indices(story(made)) == CALM and (tmp_path / "second").exists()
        assert made.report().event_counts["helper_death"] == 1

    def test_the_zygote_dies_before_it_tells_of_a_death(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        bury, second = zygote.Zygote._bury, Once(tmp_path / "second", is_killed)

        def dies(self: Any, number: int) -> None:
            second(None)
            bury(self, number)

        monkeypatch.setattr(zygote.Zygote, "_bury", dies)
        made = loader(Samples({9: Once(tmp_path / "first", is_killed)}), **FORKED)
        assert indices(story(made)) == CALM and (tmp_path / "second").exists()
        assert made.report().event_counts == {"helper_death": 1}

    def test_the_zygote_fails_when_a_worker_dies(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """By a fault of ours: another takes its place, and the story has its traceback."""
        bury, second = zygote.Zygote._bury, Once(tmp_path / "second", raises(ArithmeticError))

        def fails(self: Any, number: int) -> None:
            second(None)
            bury(self, number)

        monkeypatch.setattr(zygote.Zygote, "_bury", fails)
        events: list[Any] = []
        killed = {9: Once(tmp_path / "first", is_killed)}
        made = loader(Samples(killed), on_event=events.append, **FORKED)
        assert indices(story(made)) == CALM
        [event] = events
        assert event.kind == "helper_death" and "It raised:" in event.message and "ArithmeticError" in event.message

    def test_the_new_zygote_dies_as_it_is_born(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        settled, second = process_setup.zygote, Once(tmp_path / "second", is_killed)

        def dies() -> None:
            if (tmp_path / "first").exists():
                second(None)
            settled()

        monkeypatch.setattr(process_setup, "zygote", dies)
        killed = {9: Once(tmp_path / "first", lambda index: os.kill(os.getppid(), signal.SIGKILL))}
        made = loader(Samples(killed), **FORKED)
        assert indices(story(made)) == CALM and (tmp_path / "second").exists()
        assert made.report().event_counts == {"helper_death": 2}

    def test_a_bad_sample_in_what_is_done_again(self, tmp_path: Path) -> None:
        faults = {8: Once(tmp_path / "8", is_killed), 9: raises(OSError), 10: Once(tmp_path / "10", is_killed)}
        made = loader(Samples(faults), on_error="skip", quarantine=tmp_path / "bad", **FORKED)
        assert indices(story(made)) == [[index for index in batch if index != 9] for batch in CALM]
        assert [fault["index"] for fault in faults_in(tmp_path / "bad")] == [9]


class TestGivenUp:
    """A worker answers after it was given up: no batch comes twice."""

    def test_a_stalled_worker_that_gets_done_as_it_is_ended(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """Its answer is in its socket when the signal comes."""
        go, told = tmp_path / "go", tmp_path / "told"
        os.mkfifo(go)
        begin, kill, sockets = zygote._ForkedWorker.__init__, linux.kill, {}

        def begins(self: Any, pid: int, channel: Any) -> None:
            begin(self, pid, channel)
            sockets[pid] = channel.fileno()

        def ends(pid: int, descriptor: int | None = None) -> None:
            if (tmp_path / "stalled").exists() and not told.exists():
                told.touch()
                go.write_bytes(b"1")
                select.select([sockets[pid]], [], [])
            kill(pid, descriptor)

        monkeypatch.setattr(zygote._ForkedWorker, "__init__", begins)
        monkeypatch.setattr(linux, "kill", ends)
        faults = {9: Once(tmp_path / "stalled", lambda index: go.read_bytes())}
        settings = {**FORKED, "stall_warning": 0.2, "stall_action": "restart", "quarantine": tmp_path / "bad"}
        made = loader(Samples({**faults, 10: raises(OSError)}), on_error="skip", **settings)
        assert indices(story(made)) == [[index for index in batch if index != 10] for batch in CALM]
        assert told.exists()
        assert [fault["index"] for fault in faults_in(tmp_path / "bad")] == [10]
        assert fates(made)["delivered"] == N - 1

    def test_a_zygote_that_was_stopped_with_answers_in_hand(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What it had sent before is not lost, and not made twice."""
        monkeypatch.setattr(trainer, "PULSE", 0.05)
        iterator = iter(loader(Samples(), **FORKED))
        batches = [plain(next(iterator))]
        stopped = iterator._backend.pids[0]
        os.kill(stopped, signal.SIGSTOP)
        monkeypatch.setattr(trainer, "HUNG", 0.3)
        batches += map(plain, iterator)
        assert indices(batches) == CALM

    def test_a_batch_that_comes_after_its_timeout(self) -> None:
        """The batch is delivered at the next call."""
        ear, mouth = os.pipe()

        def waits(index: Any) -> None:
            os.read(ear, 1)

        iterator = iter(loader(Samples({9: waits}), timeout=0.3, **FORKED))
        batches = [plain(next(iterator)) for _ in range(2)]
        for _ in range(2):
            with pytest.raises(stoker.errors.LoaderTimeoutError, match="in waits"):
                next(iterator)
        os.write(mouth, b"11")
        iterator._timeout = 20
        batches += map(plain, iterator)
        assert indices(batches) == CALM
        os.close(ear)
        os.close(mouth)
