"""A warning that processes of one family give once."""

from __future__ import annotations

import mmap


class Once:
    """Says to one caller that it is the first, among this process and those that it forks. A copy in a clean
    interpreter begins anew.
    """

    def __init__(self) -> None:
        self._flag = mmap.mmap(-1, 1)  # shared with children

    def is_first(self) -> bool:
        """Returns whether nobody has called this before. Two processes at the same moment may both be first."""
        was_called, self._flag[0] = self._flag[0], 1
        return not was_called

    def __reduce__(self) -> tuple[type[Once], tuple[()]]:
        return Once, ()
