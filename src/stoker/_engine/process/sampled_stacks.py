"""Samples the Python stacks of a worker while it makes samples, as estimates of where its time goes."""

from __future__ import annotations

import os
import sys
import threading
from types import CodeType, FrameType

from stoker._engine.timings import StackCount

INTERVAL = 0.01
"""Seconds between two looks at the stacks."""

DEEPEST = 64
"""Functions of a stack that are kept: the outermost ones."""

_STOKER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_OURS = tuple(os.path.join(_STOKER, part) + os.sep for part in ("_engine", "loader/_job", "loader/_random"))


class StackSampler:
    """Counts the stacks of all threads of a worker process, in a thread of its own. For worker processes alone.

    A stack begins below the functions of Stoker that run a unit; a thread that is in one of them, as in waiting for
    work, is not counted. What a C function holds the interpreter's lock for, is counted for its caller, or not at all.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._names: dict[CodeType, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stoker-stacks", daemon=True)

    def begin(self) -> None:
        """Starts the thread, which ends with the process."""
        self._thread.start()

    def end(self) -> None:
        """Ends the thread."""
        self._stop.set()
        self._thread.join()

    def read(self) -> tuple[StackCount, ...]:
        """Returns the stacks that were seen since the last call."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return tuple(StackCount(stack, count) for stack, count in counts.items())

    def _run(self) -> None:
        mine = threading.get_ident()
        while not self._stop.wait(INTERVAL):
            found = [self._folded(frame) for thread, frame in sys._current_frames().items() if thread != mine]
            with self._lock:
                for stack in filter(None, found):
                    self._counts[stack] = self._counts.get(stack, 0) + 1

    def _folded(self, frame: FrameType | None) -> str:
        """Returns the functions of a stack, the outermost first, with ";" between them; "" if none is the user's."""
        names: list[str] = []
        while frame is not None and not frame.f_code.co_filename.startswith(_OURS):
            names.append(self._name(frame.f_code))
            frame = frame.f_back
        if frame is None:  # a thread that is no part of the work
            return ""
        return ";".join(names[::-1][:DEEPEST])

    def _name(self, code: CodeType) -> str:
        name = self._names.get(code)
        if name is None:
            function = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
            place = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"
            name = self._names[code] = f"{function} ({place})".replace(";", ",")
        return name
