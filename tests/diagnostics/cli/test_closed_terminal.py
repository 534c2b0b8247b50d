"""A terminal that is closed while a command runs: the kernel sends SIGHUP, and each write to it fails."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from stoker.diagnostics.cli.lasting_output import lasting_output

STARTS = """
    import fcntl, os, signal, sys, termios
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever the caller of this test has set, as by nohup
    fcntl.ioctl(int(sys.argv[1]), termios.TIOCSCTTY, 0)
    os.execv(sys.executable, [sys.executable, "-m", "stoker", *sys.argv[2:]])
    """

ENDLESS = """
    import sys, time
    from stoker import DataLoader
    for count, batch in enumerate(DataLoader(list(range(1_000_000)))):
        time.sleep(0.001)
        if count == 400:
            open(sys.argv[1], "w").close()
    """


class Command:
    """`stoker` on a terminal of its own, until its program has given batches.

    Args:
        folder: for the program.
        arguments: before those of the program.
        redirected: files in place of the terminal, as for `subprocess.Popen`.
    """

    def __init__(self, folder: Path, arguments: list[str], **redirected: Any) -> None:
        self.terminal, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        os.mkfifo(folder / "ready")
        (folder / "train.py").write_text(dedent(ENDLESS))
        command = [sys.executable, "-c", dedent(STARTS), str(theirs), *arguments, "train.py", "ready"]
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs, **redirected}
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "TERM": "xterm", "STOKER_TORCH": "0"},
            start_new_session=True,
            pass_fds=[theirs],
            **streams,
        )
        os.close(theirs)
        ready = os.open(folder / "ready", os.O_RDONLY | os.O_NONBLOCK)
        poll = select.poll()
        poll.register(ready, select.POLLHUP)
        for _ in range(600):  # the program opens and closes it; meanwhile somebody has to read the terminal
            if poll.poll(0):
                break
            if select.select([self.terminal], [], [], 0.1)[0]:
                os.read(self.terminal, 10_000)
            assert self.process.poll() is None
        os.close(ready)

    def close_terminal(self, again: bool = False) -> int:
        """Closes the terminal, and may send SIGHUP over and over, as shells do once; returns the exit code."""
        os.close(self.terminal)
        for _ in range(1200):
            if again:
                self.process.send_signal(signal.SIGHUP)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.wait(0.05)
        self.process.kill()
        self.process.wait()
        raise AssertionError("the command did not end")


@pytest.mark.parametrize("again", [False, True])
def test_run_writes_its_report(again: bool, tmp_path: Path) -> None:
    command = Command(tmp_path, ["run", "--report", "r.html", "--trace", "t.json"])
    assert command.close_terminal(again) == 128 + signal.SIGHUP
    assert "train.py:4" in (tmp_path / "r.html").read_text()
    assert len(json.loads((tmp_path / "t.json").read_text())["traceEvents"]) > 400


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_run_prints_its_table_where_it_can(name: str, tmp_path: Path) -> None:
    with open(tmp_path / "printed", "w+") as file:
        options = ["--json"] if name == "stdout" else []
        command = Command(tmp_path, ["run", *options], **{name: file})
        assert command.close_terminal() == 128 + signal.SIGHUP
        file.seek(0)
        printed = file.read()
    assert "Traceback" not in printed
    if options:
        assert json.loads(printed)["exit_code"] == 128 + signal.SIGHUP
    else:
        assert "the program was interrupted" in printed and "train.py:4 list" in printed


@pytest.mark.parametrize("name", ["profile", "compare"])
def test_other_commands_end_with_the_signals_code(name: str, tmp_path: Path) -> None:
    with open(tmp_path / "errors", "w+") as file:
        command = Command(tmp_path, [name, "--batches", "100000"], stderr=file)
        assert command.close_terminal(again=True) == 128 + signal.SIGHUP
        file.seek(0)
        assert "Traceback" not in file.read()


def test_closed_terminal_takes_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with lasting_output():
            assert sys.stderr.isatty() and sys.stderr.fileno() == stream.fileno()
            sys.stderr.write("one\n")
            assert os.read(ours, 100) == b"one\r\n"
            os.close(ours)
            sys.stderr.write("two\n")
        assert sys.stderr is stream
