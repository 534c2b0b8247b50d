"""The lock that a worker waits for, and that a worker that died may have held."""

from __future__ import annotations

import linecache
import os
import re

_FRAME = re.compile(r'File "(.+)", line (\d+) in (\S+)')
_LOCKS = os.path.join("multiprocessing", "synchronize.py")


def held_lock(stack: str, who: str = "It") -> str:
    """Returns a sentence on the lock of `multiprocessing` for which a worker waits, at a space; "" if it does not.

    Nobody releases a lock whose owner was killed. Call it where a worker has died before.

    Args:
        stack: of the worker, or of several, as `faulthandler` writes it: the innermost frame first.
        who: the worker, as the subject of the sentence.
    """
    inner = ""
    for line in stack.splitlines():
        if (found := _FRAME.search(line)) is None:
            inner = ""  # another thread follows
            continue
        file, number, _ = found.groups()
        if not file.endswith(_LOCKS):
            is_first = not inner and not file.endswith("threading.py")  # of which each process has its own locks
            if inner.endswith(_LOCKS) or (is_first and ".acquire(" in linecache.getline(file, int(number))):
                return (
                    f" {who} waits in acquire() of a lock, at {os.path.basename(file)}:{number}. The worker that died "
                    "may have held that lock, and then nobody releases it: hold no lock of multiprocessing around code "
                    "that can end a process."
                )
        inner = file
    return ""
