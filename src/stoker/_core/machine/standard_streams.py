"""Keeps descriptors 0, 1 and 2 from ordinary files: programs take these numbers for the standard streams."""

from __future__ import annotations

import os


def occupy() -> None:
    """Opens the null device for each standard descriptor that is closed, permanently, for child processes too.

    Otherwise an opened file gets the number: a C library's message about a damaged image would be written into a batch,
    and a worker would read its standard input from one of Stoker's files.
    """
    while (nothing := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(nothing, True)
    os.close(nothing)
