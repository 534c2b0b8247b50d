"""Errors of files that cannot be written, with the consequence for their writer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def explained(path: str, consequence: Callable[[], str]) -> Iterator[None]:
    """Adds a writer's words to an OSError of the system that is raised in the block.

    Args:
        path: of the file or folder, for the error.
        consequence: returns a sentence: the file, the complete parts that are left, and the remedy.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, f"{error.strerror}: {consequence()}", path) from None
