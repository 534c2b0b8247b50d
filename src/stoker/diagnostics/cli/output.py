"""What commands print: JSON, and tables that become lists on a narrow terminal."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

from rich.console import Console
from rich.table import Table

from stoker.diagnostics.cli.command_error import CommandError

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
    """Refuses a file that cannot be written, before a long run and not after it.

    Raises:
        CommandError: names the folder and the reason.
    """
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise CommandError(f"{option} {path}: the folder {folder} does not exist: make it, or name another one")
    if os.path.isdir(path) or not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise CommandError(f"{option} {path}: it cannot be written: name another file")
