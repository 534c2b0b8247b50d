"""Descriptors 0, 1 and 2: whoever prints or reads there means the standard streams, whatever file has the number."""

from __future__ import annotations

import os


def occupy() -> None:
    """Puts nothing where a program was started without them, for good: no file that is opened from now on has such a
    number, neither here nor in a process that is started here.

    Otherwise what a library in C prints about a damaged image would be written into a batch, and the standard input
    that a worker is not to have would be a file of ours.
    """
    while (nothing := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(nothing, True)
    os.close(nothing)
