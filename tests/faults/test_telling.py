"""Who is told of faults, and how often: warnings, logging, `on_event`, the quarantine file."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker import ErrorBudgetError, StokerWarning
from stoker.errors import IteratorClosedError
from tests.faults.everywhere import EVERY, EVERYWHERE
from tests.faults.runs import (
    BACKENDS,
    BAD,
    N,
    Once,
    Samples,
    crashes,
    fates,
    faults_in,
    is_killed,
    loader,
    plain,
    story,
)

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than CPUs

ROOT = Path(__file__).parents[2]


def settings_of(backend: str | None) -> dict[str, Any]:
    return BACKENDS[backend] if backend else {}


def run_alone(program: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command, environment = [sys.executable, *flags, "-c", program], {**os.environ, "STOKER_TORCH": "0"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_a_warning_for_the_first_bad_sample(backend: str | None) -> None:
    made = loader(Samples(BAD), on_error="skip", **settings_of(backend))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        story(made)
        story(made)
    assert len(told) == 1 and told[0].category is StokerWarning
    assert "sample 2 of batch 0 failed, and was left out: OSError: image file is truncated (2)" in str(told[0].message)
    assert Path(told[0].filename).name == "runs.py"  # the line that asked for the batch


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_no_warning_for_what_the_user_gets_or_wished(backend: str | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        story(loader(Samples(BAD), **settings_of(backend)))
        wishes = {index: fault for index, fault in BAD.items() if index in (8, 31)}
        story(loader(Samples(wishes), on_error="skip", **settings_of(backend)))


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
@pytest.mark.parametrize("backend", EVERYWHERE)
def test_the_logger_hears_of_each(backend: str | None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "stoker"):
        story(loader(Samples(BAD), on_error="skip", **settings_of(backend)))
    said = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "stoker"]
    assert [level for level, _ in said] == ["WARNING", "WARNING", "INFO", "WARNING", "WARNING", "INFO"]
    assert said[2][1] == "sample 8 of batch 2 asked to be left out, and was left out: too dark (8)"


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
def test_the_logger_hears_of_workers(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    killers = {5: crashes, 20: Once(tmp_path / "once", is_killed)}
    made = loader(Samples(killers), on_error="skip", max_samples_per_worker=16, **BACKENDS["two workers"])
    with caplog.at_level(logging.DEBUG, "stoker"):
        story(made)
    levels = {record.levelname for record in caplog.records}
    assert levels == {"WARNING", "INFO"}
    retired = [record for record in caplog.records if "is replaced between two batches" in record.getMessage()]
    assert retired and all(record.levelname == "INFO" for record in retired)


def test_logger_without_handler_prints_nothing() -> None:
    """Python would print what a logger without a handler is told; the warning has said it already."""
    program = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "from tests.faults.runs import *\n"
        "story(loader(Samples(BAD), on_error='skip'))"
    )
    run = run_alone(program)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
class TestListener:
    @pytest.mark.parametrize("backend", EVERYWHERE)
    def test_hears_of_each_before_its_batch(self, backend: str | None) -> None:
        events: list[Any] = []
        iterator = iter(loader(Samples(BAD), on_error="skip", on_event=events.append, **settings_of(backend)))
        heard = []
        for batch in iterator:
            heard.append((plain(batch)[0][0], [(event.kind, event.details["index"]) for event in events]))
            events.clear()
        assert [told for _, told in heard if told] == [
            [("error", 2)],
            [("error", 7)],
            [("skip", 8), ("error", 9)],
            [("error", 30), ("skip", 31)],
        ]

    def test_event_names_the_place(self) -> None:
        events: list[Any] = []
        story(loader(Samples(BAD), on_error="replace", on_event=events.append, **BACKENDS["two workers"]))
        event = next(event for event in events if event.details["index"] == 7)
        assert (event.kind, event.batch) == ("error", 1) and event.worker in (0, 1)
        assert event.details["outcome"] == "replaced" and event.details["replacement"] in (4, 5, 6)
        assert f"replaced by {event.details['replacement']}" in event.message

    @pytest.mark.parametrize("backend", EVERYWHERE)
    def test_may_raise_and_nothing_is_lost(self, backend: str | None) -> None:
        """What it raises comes out of `next()`; the next one goes on."""

        def listener(event: Any) -> None:
            if event.kind == "error":
                raise RuntimeError(f"no more: {event.details['index']}")

        made = loader(Samples(BAD), on_error="skip", on_event=listener, **settings_of(backend))
        iterator, batches, raised = iter(made), [], []
        while True:
            try:
                batches.append(plain(next(iterator))[0])
            except StopIteration:
                break
            except RuntimeError as error:
                raised.append(str(error))
            assert len(raised) < 9
        read = {index for batch in batches for index in batch}
        assert raised == [f"no more: {index}" for index in (2, 7, 9, 30)]
        assert read == set(range(N)) - set(BAD)

    def test_listener_of_a_death_may_raise(self, tmp_path: Path) -> None:
        def listener(event: Any) -> None:
            raise RuntimeError(event.kind)

        dataset = Samples({9: Once(tmp_path / "once", is_killed)})
        iterator = iter(loader(dataset, on_event=listener, **BACKENDS["two workers"]))
        batches, raised = [], []
        for _ in range(N):
            try:
                batches.append(plain(next(iterator))[0])
            except StopIteration:
                break
            except RuntimeError as error:
                raised.append(str(error))
        assert raised == ["death"] and sorted(index for batch in batches for index in batch) == list(range(N))

    @pytest.mark.parametrize("backend", EVERYWHERE)
    def test_may_close_the_iterator(self, backend: str | None) -> None:
        iterator: Any
        made = loader(Samples(BAD), on_error="skip", on_event=lambda event: iterator.close(), **settings_of(backend))
        iterator = iter(made)
        with pytest.raises(IteratorClosedError, match="make a new one"):
            list(iterator)
        assert not iterator.is_open

    @pytest.mark.parametrize("backend", ["two workers", "three threads"])
    def test_may_close_it_where_a_sample_never_ends(self, backend: str) -> None:
        iterator: Any
        goes_on, ended = threading.Event(), []
        dataset = Samples({0: lambda index: goes_on.wait(10) or ended.append(index)})
        settings = {"stall_warning": 0.2, "on_event": lambda event: iterator.close(), **BACKENDS[backend]}
        iterator = iter(loader(dataset, **settings))
        try:
            with pytest.raises(IteratorClosedError):
                list(iterator)
            assert not ended
        finally:
            goes_on.set()

    @pytest.mark.parametrize("backend", EVERYWHERE)
    def test_may_raise_and_hides_nothing_that_ends_the_run(self, backend: str | None, tmp_path: Path) -> None:
        """Neither about a sample, nor about the file, which is closed then."""

        def listener(event: Any) -> None:
            raise RuntimeError(event.kind)

        made = loader(Samples(BAD), on_error="skip", max_errors=0, on_event=listener, **settings_of(backend))
        with pytest.raises(ErrorBudgetError, match="max_errors=0") as caught:
            list(made)
        assert repr(caught.value.__context__) == "RuntimeError('error')"

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a file that is always full")
    @pytest.mark.parametrize("max_errors", [0, None])
    @pytest.mark.parametrize("backend", EVERYWHERE)
    def test_may_raise_at_the_end_and_keeps_no_worker(self, backend: str | None, max_errors: int | None) -> None:
        """Once where the file is found full, and once more where it is closed."""

        def listener(event: Any) -> None:
            if event.kind == "quarantine_failed":
                raise RuntimeError("full")

        settings = {"on_event": listener, "max_errors": max_errors, "quarantine": "/dev/full", **settings_of(backend)}
        iterator = iter(loader(Samples(BAD), on_error="skip", **settings))
        raised = []
        while iterator.is_open:
            try:
                next(iterator)
            except StopIteration:
                break
            except (RuntimeError, ErrorBudgetError) as error:
                raised.append(type(error))
        assert not iterator.is_open
        assert raised == [ErrorBudgetError] if max_errors == 0 else set(raised) == {RuntimeError}


def test_error_budget_error_comes_where_warnings_are_errors() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ErrorBudgetError) as caught:
            list(loader(Samples(BAD), on_error="skip", max_errors=0))
    assert isinstance(caught.value.__context__, StokerWarning)


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
class TestFile:
    @pytest.mark.parametrize("backend", EVERY)
    @pytest.mark.parametrize("policy", ["raise", "skip", "replace"])
    def test_quarantine_file_is_the_same_on_every_backend(self, policy: str, backend: str, tmp_path: Path) -> None:
        for name, settings in (("serial", {}), ("this", BACKENDS[backend])):
            made = loader(Samples(BAD), on_error=policy, quarantine=tmp_path / name, shuffle=True, **settings)
            story(made)
            story(made)
        lines = faults_in(tmp_path / "this")
        assert lines == faults_in(tmp_path / "serial")
        assert len(lines) == len((tmp_path / "this").read_text().splitlines())
        assert {line["index"] for line in lines if line["kind"] != "skip"} == {2, 7, 9, 30}

    @pytest.mark.parametrize("backend", EVERYWHERE)
    def test_quarantine_line_is_written_before_its_batch_comes(self, backend: str | None, tmp_path: Path) -> None:
        file = tmp_path / "bad"
        for batch in loader(Samples(BAD), on_error="skip", quarantine=file, **settings_of(backend)):
            known = {record.index for record in stoker.quarantine(file).records}
            last = plain(batch)[0][-1]
            assert known == {index for index in BAD if index < last or index // 4 == last // 4}

    def test_leaves_the_bad_ones_out_of_the_next_run(self, tmp_path: Path) -> None:
        story(loader(Samples(BAD), on_error="skip", quarantine=tmp_path / "bad"))
        clean = stoker.quarantine(tmp_path / "bad").without(Samples(BAD))
        made = loader(clean, max_errors=0)
        story(made)
        assert fates(made)["delivered"] == N - 6 and fates(made)["skipped"] == 2


@pytest.mark.filterwarnings("ignore::stoker.StokerWarning")
def test_python_o_changes_nothing() -> None:
    program = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "from tests.faults.runs import *\n"
        "for policy in ('raise', 'skip', 'replace'):\n"
        "    made = loader(Samples({**BAD, 20: crashes}), on_error=policy, **BACKENDS['two workers'])\n"
        "    print(story(made), fates(made))\n"
    )
    runs = [run_alone(program), run_alone(program, "-O")]
    assert runs[0].returncode == runs[1].returncode == 0, runs[0].stderr
    assert runs[0].stdout == runs[1].stdout != ""
