"""What happens to a loader's processes in a soak: they are killed, stopped, frozen, at moments drawn by chance."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

KILLS = 2
"""From outside, for each loader: with three at the same place a sample would be to blame."""


class Torment:
    """Does something to a loader's processes now and then, also within `next()`.

    Args:
        chance: when, and what.
        batches: over how many it is spread.
        counts: of what was done.
        diary: what was done, and when.
    """

    def __init__(self, chance: random.Random, batches: int, counts: Counter[str], diary: list[str]) -> None:
        self._diary = diary
        self._chance = chance
        self._often = min(0.3, 10 / (batches + 1))
        self._counts = counts
        self._kills, self._stops, self._grows = KILLS, 1, 2
        self._zygote = self._frozen = 0
        self._act: Callable[[], None] | None = None  # what the alarm does
        signal.signal(signal.SIGALRM, lambda *_: self._later())

    def before_next(self, iterator: Any) -> None:
        """Perhaps something happens now, or in a moment."""
        if not hasattr(iterator._backend, "pids") or self._chance.random() > self._often:
            return
        self.end()
        self._backend = weakref.ref(iterator._backend)
        self._zygote = iterator._backend.pids[0]
        acts = [self._kill, self._kill, self._stop, self._freeze, self._fork]
        if iterator._num_yielded:  # the first zygote's death ends the run if it dies at its birth
            acts.append(self._kill_zygote)
        if iterator._backend.capabilities.can_grow:
            acts.append(self._grow)
        act = self._chance.choice(acts)
        delay = self._chance.choice([0, 0, 0.0005, 0.003, 0.02])
        if delay == 0 or act in (self._fork, self._grow):  # neither is made for handlers of signals
            act()
        else:
            self._act = act
            signal.setitimer(signal.ITIMER_REAL, delay)

    def end(self) -> None:
        """Nothing happens from now on."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._act = None  # an alarm that another thread received is heard after this
        self._thaw()

    def _later(self) -> None:
        if self._frozen:
            self._thaw()
        elif self._act:
            self._act()

    def _kill(self) -> None:
        if self._kills and self._send(self._worker(), signal.SIGKILL, "workers killed"):
            self._kills -= 1

    def _stop(self) -> None:
        if self._stops and self._send(self._worker(), signal.SIGSTOP, "workers stopped"):
            self._stops -= 1

    def _freeze(self) -> None:
        """For a moment, a worker or the zygote."""
        pid = self._chance.choice([self._worker(), self._zygote])
        if self._send(pid, signal.SIGSTOP, "processes frozen for a moment"):
            self._frozen = pid
            signal.setitimer(signal.ITIMER_REAL, 0.02)

    def _thaw(self) -> None:
        pid, self._frozen = self._frozen, 0
        self._send(pid, signal.SIGCONT)

    def _kill_zygote(self) -> None:
        if self._chance.random() < 0.5:
            self._send(self._zygote, signal.SIGKILL, "zygotes killed")

    def _grow(self) -> None:
        """There is one worker more, as "auto" has it."""
        backend = self._backend()
        if self._grows and backend is not None:
            self._grows -= 1
            backend.grow(len(backend.pids))
            self._counts["workers more"] += 1

    def _fork(self) -> None:
        """This process has a child of its own, for a moment."""
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        self._counts["forks of this process"] += 1

    def _worker(self) -> int:
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{self._zygote}/task/{self._zygote}/children").read_text().split()
            if children:
                return int(self._chance.choice(children))
        return 0

    def _send(self, pid: int, number: signal.Signals, what: str = "") -> bool:
        try:
            if pid:
                os.kill(pid, number)
        except ProcessLookupError:
            return False
        if pid and what:
            self._counts[what] += 1
            self._diary.append(f"{time.strftime('%H:%M:%S')} {what}: {pid}")
        return bool(pid)
