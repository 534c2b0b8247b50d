"""Whose an iterator is: its workers answer one process, and a fork of it shares their sockets, pipes and memory."""

from __future__ import annotations

import os

from stoker import errors


def check(owner: int) -> None:
    """Refuses a forked child: what it sent would be taken for its parent's, and what it read is missing there.

    Raises:
        IteratorClosedError: this is not the process `owner`.
    """
    if os.getpid() != owner:
        raise errors.IteratorClosedError(
            f"this iterator belongs to process {owner} and was asked for a batch in process {os.getpid()}, which was "
            "forked from it: make a new one with iter(loader) there"
        )
