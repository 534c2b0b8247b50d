"""Whether workers were born with a lock held: all of them wait for locks in their first units, and use no processor."""

from __future__ import annotations

from collections.abc import Collection

from stoker._engine.process import linux
from stoker._engine.process.deadlines import LOCKED_AFTER


class ForkDeadlockCheck:
    """Looks at workers until one of them has answered."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._used: dict[int, float] = {}  # pid → seconds of processor time, when it was looked at last
        self._found = False

    def shows(self, busy: Collection[int], now: float) -> bool:
        """Whether it shows now, the first time, in the workers with these pids, all that have something to do."""
        if self._found:
            return False
        waits = bool(busy)
        for pid in busy:
            used = linux.cpu_seconds(pid)
            if used != self._used.get(pid, 0.0) or not linux.waits_for_a_lock(pid):
                waits = False
            self._used[pid] = used
        if not waits:
            self._since = None
        elif self._since is None:
            self._since = now
        else:
            self._found = now - self._since > LOCKED_AFTER
        return self._found
