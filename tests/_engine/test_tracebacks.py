"""Tracebacks without Stoker's frames."""

from __future__ import annotations

import os
import traceback

import pytest

import stoker
from stoker._engine import tracebacks
from stoker._engine.tracebacks import hide_own_frames, users_stacks, users_story, without_own_lines
from stoker.errors import BatchError, SamplerError

OURS = os.path.dirname(stoker.__file__)


def caught(dataset: object) -> Exception:
    """An error with a frame of Stoker's between two of this file."""
    try:
        stoker.Subset(dataset, [3])[0]  # type: ignore[var-annotated, arg-type]
    except Exception as error:
        return error
    raise AssertionError("no error was raised")


class Broken:
    def __init__(self, error: Exception, cause: Exception | None = None) -> None:
        self.error = error
        self.cause = cause

    def __getitem__(self, index: int) -> object:
        raise self.error from self.cause


def files(error: BaseException) -> list[str]:
    return [frame.filename.replace(OURS, "stoker") for frame in traceback.extract_tb(error.__traceback__)]


def test_frames_of_stoker_are_hidden_and_the_users_stay() -> None:
    error = caught(Broken(KeyError("b")))
    assert any(file.startswith("stoker") for file in files(error))
    hide_own_frames(error)
    assert files(error) == [__file__, __file__]
    assert error.__traceback__ is not None and error.__traceback__.tb_next is not None
    assert "self" in error.__traceback__.tb_next.tb_frame.f_locals  # a debugger sees the user's frame


def test_full_tracebacks_are_shown_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_TRACEBACK", "full")
    error = caught(Broken(KeyError("b")))
    hide_own_frames(error)
    assert any(file.startswith("stoker") for file in files(error))
    assert "datasets" in users_story(error)[1] and users_stacks(STACKS) == STACKS
    assert without_own_lines("".join(traceback.format_exception(error))).count(OURS)


def test_a_bug_of_stokers_keeps_its_frames() -> None:
    try:
        stoker.Subset(None, [3])[0]  # type: ignore[var-annotated, arg-type]
    except TypeError as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # without this file's frame
        hide_own_frames(error)
        assert files(error) and all(file.startswith("stoker") for file in files(error))


def test_a_reader_of_stokers_keeps_its_frames_alone() -> None:
    paths = stoker.ImageFiles(["/no/such/file.jpg"], transform=None)
    loader = stoker.DataLoader(paths, output="numpy", collate_fn=list)
    with pytest.raises(OSError, match=r"file\.jpg") as caught:
        list(loader)
    trail = files(caught.value)
    assert trail[1] == "stoker/loader/iterator.py" and not any("stoker/_engine" in file for file in trail), trail


def test_the_message_of_an_error_of_stokers_comes_first() -> None:
    message, shown = users_story(caught(Broken(BatchError("give a collate_fn"), ValueError("no"))))
    assert message == "give a collate_fn"
    assert shown.startswith("ValueError: no\n") and shown.endswith("raise self.error from self.cause")
    message, shown = users_story(caught(Broken(IndexError(9), SamplerError("index 9 of 5"))))
    assert message == "index 9 of 5" and shown.endswith("IndexError: 9") and "direct cause" not in shown


def test_an_error_of_stokers_alone_is_its_message() -> None:
    assert users_story(BatchError("give a collate_fn")) == ("give a collate_fn", "")


def test_lines_of_stokers_leave_a_text() -> None:
    own = f'  File "{OURS}/a.py", line 1, in f\n    f()\n    ^^^\n'
    text = f'Traceback:\n{own}  File "mine.py", line 2, in g\n    g()\nE: e'
    assert without_own_lines(text) == 'Traceback:\n  File "mine.py", line 2, in g\n    g()\nE: e'
    alone = f'Traceback:\n  File "{OURS}/a.py", line 1, in f\nE: e'
    assert without_own_lines(alone) == alone


STACKS = f"""Worker 0 (pid 7):
Current thread 0x00007f (most recent call first):
  File "/lib/numpy/load.py", line 5 in load
  File "train.py", line 17 in __getitem__
  File "{OURS}/loader/_job/job.py", line 155 in run
  File "{OURS}/_engine/process/worker.py", line 169 in _run_job
  File "{OURS}/_engine/fork/zygote.py", line 285 in _fork
  File "train.py", line 21 in <module>

Worker 1 (pid 8):
Current thread 0x00007f (most recent call first):
  File "{OURS}/_engine/process/worker.py", line 379 in _wait
  File "{OURS}/_engine/process/worker.py", line 367 in receive
  File "{OURS}/_engine/process/worker.py", line 303 in _next
  File "{OURS}/_engine/process/worker.py", line 139 in run
  File "train.py", line 21 in <module>

Worker 2 (pid 9):
(stopped, by SIGSTOP or a debugger)
Worker 3 (pid 10):
Thread 0x00008f (most recent call first):
  File "{OURS}/loader/_job/job.py", line 155 in run
  File "{OURS}/_engine/thread.py", line 202 in _run
  File "/lib/threading.py", line 982 in run
Worker 4 (pid 11):
Current thread 0x00007f (most recent call first):
  File "{OURS}/_engine/process/worker.py", line 361 in _wait
  File "{OURS}/_engine/process/worker.py", line 359 in send
  File "{OURS}/_engine/process/worker.py", line 139 in run
"""


def test_stacks_of_workers_have_the_users_frames() -> None:
    assert users_stacks(STACKS).splitlines() == [
        "Worker 0 (pid 7):",
        '  File "/lib/numpy/load.py", line 5 in load',
        '  File "train.py", line 17 in __getitem__',
        "Worker 1 (pid 8):",
        "  waits for a batch to make",
        "Worker 2 (pid 9):",
        "(stopped, by SIGSTOP or a debugger)",
        "Worker 3 (pid 10):",
        f'  File "{OURS}/loader/_job/job.py", line 155 in run',
        "Worker 4 (pid 11):",
        "  waits for memory for its batch, or to hand it over",
    ]
    assert users_stacks("(the workers' stacks could not be read)") == "(the workers' stacks could not be read)"


def test_the_package_is_stokers() -> None:
    assert os.path.samefile(tracebacks._PACKAGE, OURS)
