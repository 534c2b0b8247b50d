"""The files that options such as `--report` name: refused before a long run, and written after all else is shown."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from stoker.diagnostics.cli.command_error import CommandError
from stoker.diagnostics.cli.output import check_writable

BEGINNINGS = {"HTML": (b"<!doctype html", b"<html"), "JSON": (b"{", b"[")}
"""By the kind of file: how it begins, in lower case."""

READ = 512
"""Bytes of an existing file in which its beginning is looked for."""


def check_output(
    path: Path | str | None, option: str, kind: Literal["HTML", "JSON"] | None = "HTML", script: str | None = None
) -> None:
    """Refuses a file that cannot be written, or one that holds something else and would be lost.

    Args:
        path: of the file; None for none.
        option: that names it.
        kind: of file that is written. An existing file has to be one, or to be empty; None for any.
        script: that is run, which is never replaced.

    Raises:
        CommandError: names the reason, and what to change.
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
    """Writes files, each one even if another cannot be written; returns what failed as a sentence, or None.

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
