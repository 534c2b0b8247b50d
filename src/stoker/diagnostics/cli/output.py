"""The output of commands: JSON, tables that become lists on a narrow terminal, a status line, and files."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

from rich.console import Console
from rich.table import Table

from stoker.sources.urls import without_secrets

NARROW = 88
"""Columns of the terminal below which a table is shown as a list."""


def print_json(values: Any) -> None:
    """Prints a value as JSON to standard output."""
    sys.stdout.write(json.dumps(values, indent=2) + "\n")


def console_of(stream: IO[str]) -> Console:
    """Returns a console for a stream: no colour if it is not a terminal, or if `NO_COLOR` is set."""
    width = shutil.get_terminal_size((100, 24)).columns
    return Console(file=stream, width=max(20, width), highlight=False, soft_wrap=False, emoji=False, markup=False)


def print_table(console: Console, rows: Sequence[Mapping[str, str]]) -> None:
    """Prints rows of the same columns: as a table, or as one list for each row where the terminal is narrow.

    A list leaves out empty values.
    """
    if not rows:
        return
    if console.width < NARROW:
        width = max(map(len, rows[0]))
        for number, row in enumerate(rows):
            if number:
                console.print()
            for name, value in row.items():
                if value:
                    console.print(f"{name:<{width}}  {value}")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, name in enumerate(rows[0]):
        table.add_column(name, justify="left" if number == 0 else "right", no_wrap=number > 0)
    for row in rows:
        table.add_row(*row.values())
    console.print(table)


def size(number: float) -> str:
    """Returns a number of bytes in words."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return f"{number:.0f} bytes"


def seconds(number: float) -> str:
    """Returns a time in words."""
    if number >= 120:
        return f"{number / 60:.1f} min"
    return (
        f"{number:.1f} s" if number >= 1 else f"{1e3 * number:.0f} ms" if number >= 0.01 else f"{1e3 * number:.2g} ms"
    )


def check_writable(path: str, option: str) -> None:
    """Refuses a file that cannot be written, before a long run and not after it."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise CommandError(f"{option} {path}: the folder {folder} does not exist: make it, or name another one")
    if os.path.isdir(path) or not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise CommandError(f"{option} {path}: it cannot be written: name another file")


class CommandError(Exception):
    """One sentence: the fault, and the remedy. The command line shows it without a traceback."""


BEGINNINGS = {"HTML": (b"<!doctype html", b"<html"), "JSON": (b"{", b"[")}
"""By the kind of file: how it begins, in lower case."""

READ = 512
"""Bytes of an existing file in which its beginning is looked for."""


def check_output(
    path: Path | str | None, option: str, kind: Literal["HTML", "JSON"] | None = "HTML", script: str | None = None
) -> None:
    """Refuses a file that cannot be written, or one that holds something else and would be lost.

    Args:
        kind: of file that is written. An existing file has to be one, or to be empty; None for any.
        script: that is run, which is never replaced.
    """
    if path is None:
        return
    check_writable(str(path), option)
    if script is not None and os.path.exists(path) and os.path.exists(script) and os.path.samefile(path, script):
        raise CommandError(f"{option} {path} would replace the script that is run: name another file")
    if kind is None or not os.path.isfile(path):
        return
    try:
        with open(path, "rb") as file:
            begins = file.read(READ).lstrip().lower()
    except OSError:  # it can be written only
        return
    if begins and not begins.startswith(BEGINNINGS[kind]):
        raise CommandError(f"{option} {path} would replace a file that is no {kind}: name another file, or delete it")


def written(*files: tuple[str, Path | None, Callable[[str], None]]) -> str | None:
    """Writes files, each one even if another cannot be written; returns a sentence on those that failed, or None.

    Args:
        files: of each the option, the path, or None for no file, and the function that writes it to a path.
    """
    failures = []
    for option, path, write in files:
        try:
            if path is not None:
                write(str(path))
        except OSError as error:
            failures.append(unwritten(option, path, error))
    return "; ".join(failures) or None


def unwritten(option: str, path: Path | None, error: OSError) -> str:
    """Returns the sentence about a file that cannot be written."""
    return f"{option} {path}: it cannot be written ({error.strerror or error}): name another file"


INTERVAL = 0.5
"""Seconds between two versions of the line."""


class StatusLine:
    """Shows a line while a program runs, as a context manager; the end of the block removes it.

    The rows above it are made the scrolling region of the terminal (DECSTBM), so the program's own lines, progress bars
    included, never touch it. On anything but a terminal nothing is written.

    Args:
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


@contextlib.contextmanager
def samples_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Shows a bar on a terminal's standard error; yields the function that is told the samples done and of all."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn())
    is_shown = sys.stderr.isatty()
    # `auto_refresh` would start a thread, and workers are forked from this process
    with Progress(*columns, console=console_of(sys.stderr), auto_refresh=False, disable=not is_shown) as progress:
        task = progress.add_task(what, total=None)

        def show(done: int, of: int) -> None:
            progress.update(task, completed=done, total=of)
            progress.refresh()

        yield show if is_shown else None


MASK = "***"

_SECRET = re.compile(r"token$|keys?$|passw|passphrase|pwd$|secret|credential|auth$|authorization|bearer")
"""The part of a name, in lower case, after which its value is a secret. `--tokenizer` and `--max-tokens` are none."""

_PARTS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_NAMED = re.compile(r"([-+~]*[\w.\-/@]+)(=|:\s+)(.*)", re.DOTALL)
_LOGIN = re.compile(r"[^\s/:@=,]+:[^\s/@]+@(?=[\w.\[-])")


def shown_command(words: Sequence[str]) -> str:
    """Returns a command as one line for a shell, in which values that look secret are replaced by `***`.

    These are the values of arguments whose names look secret (`--token X`, `--api-key=X`, `db.password=X`), and what
    URLs may hold: user, password, query and fragment.
    """
    return shlex.join(_shown(words))


def _shown(words: Sequence[str]) -> Iterator[str]:
    follows = False  # the value of an option that looks secret
    for word in words:
        if follows and not word.startswith("-"):
            follows = False
            yield MASK
            continue
        follows = word.startswith("-") and "=" not in word and _is_secret(word)
        yield _word(word)


def _word(word: str) -> str:
    if (named := _NAMED.fullmatch(word)) is not None and "://" not in named[1]:
        name, between, value = named.groups()
        return f"{name}{between}{MASK if value and _is_secret(name) else _word(value)}"
    try:
        word = without_secrets(word)
    except ValueError:  # of a URL that cannot be parsed
        return MASK
    return _LOGIN.sub(f"{MASK}@", word)


def _is_secret(name: str) -> bool:
    return any(_SECRET.search(part.lower()) for part in _PARTS.split(name))
