"""`StatusLine`: a line at the bottom of the terminal, below a program that prints as it likes.

The rows above it are made the scrolling region of the terminal (DECSTBM), so the program's own lines, progress bars
included, never touch it. On anything but a terminal nothing is written.
"""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import IO

INTERVAL = 0.5
"""Seconds between two versions of the line."""


class StatusLine:
    """Shows a line while a program runs, as a context manager; the end of the block removes it.

    Args:
        stream: of the terminal.
        others: streams that have to be terminals as well: those that the program writes to.
    """

    def __init__(self, stream: IO[str], others: tuple[IO[str], ...] = ()) -> None:
        self._stream = stream
        self.is_shown = all(one.isatty() for one in (stream, *others)) and os.environ.get("TERM") not in (None, "dumb")
        self._size: tuple[int, int] | None = None
        self._due = 0.0

    def __enter__(self) -> StatusLine:
        return self

    def show(self, text: str) -> None:
        """Shows another text, cut to the terminal's width; not more often than `INTERVAL`."""
        now = time.monotonic()
        if not self.is_shown or now < self._due:
            return
        self._due = now + INTERVAL
        try:
            width, height = os.get_terminal_size(self._stream.fileno())
        except OSError:  # the terminal was closed
            self.is_shown, self._size = False, None
            return
        if height < 4:
            return
        if (width, height) != self._size:
            self._size = width, height
            self._write(f"\n\x1b7\x1b[1;{height - 1}r\x1b8\x1b[1A")
        self._write(f"\x1b7\x1b[{height};1H\x1b[2K{text[: width - 1]}\x1b8")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._size is not None:
            self._write(f"\x1b7\x1b[r\x1b[{self._size[1]};1H\x1b[2K\x1b8")
            self._size = None

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def standard_error(program_prints_to: IO[str] = sys.stdout) -> StatusLine:
    """Returns a line on standard error, below a program that prints to this process's standard streams."""
    return StatusLine(sys.stderr, (program_prints_to,))
