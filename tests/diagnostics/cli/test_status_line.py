"""The line at the bottom of a terminal, on a pseudo-terminal."""

from __future__ import annotations

import fcntl
import io
import os
import select
import struct
import termios
from collections.abc import Iterator

import pytest

pytest.importorskip("rich")

from stoker.diagnostics.cli import output
from stoker.diagnostics.cli.output import StatusLine


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, io.TextIOWrapper]]:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(output, "INTERVAL", 0.0)
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    with os.fdopen(theirs, "w") as stream:
        yield ours, stream
    os.close(ours)


def read_until(terminal: int, end: str) -> str:
    """What the terminal shows, up to a text: the kernel hands over what is written piece by piece."""
    shown = ""
    while not shown.endswith(end):
        assert select.select([terminal], [], [], 20)[0], repr(shown)
        shown += os.read(terminal, 10_000).decode()
    return shown


def test_line_keeps_out_of_the_programs_way(terminal: tuple[int, io.TextIOWrapper]) -> None:
    ours, stream = terminal
    with StatusLine(stream) as line:
        line.show("x" * 100)
        shown = read_until(ours, "x" * 39 + "\x1b8")
        assert "\x1b[1;23r" in shown  # the program scrolls in the rows above
        assert "\x1b[24;1H\x1b[2K" + "x" * 39 + "\x1b8" in shown
    assert "\x1b[r" in read_until(ours, "\x1b[24;1H\x1b[2K\x1b8")


def test_line_follows_the_size_of_the_terminal(terminal: tuple[int, io.TextIOWrapper]) -> None:
    ours, stream = terminal
    with StatusLine(stream) as line:
        line.show("one")
        fcntl.ioctl(stream.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", 10, 20, 0, 0))
        line.show("y" * 100)
        assert "\x1b[1;9r" in read_until(ours, "y" * 19 + "\x1b8")


def test_nothing_is_written_elsewhere(terminal: tuple[int, io.TextIOWrapper], monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, others in ((io.StringIO(), ()), (terminal[1], (io.StringIO(),))):
        with StatusLine(stream, others) as line:
            line.show("one")
        assert not line.is_shown
    monkeypatch.setenv("TERM", "dumb")
    with StatusLine(terminal[1]) as line:
        line.show("one")
    os.set_blocking(terminal[0], False)
    with pytest.raises(BlockingIOError):
        os.read(terminal[0], 100)
