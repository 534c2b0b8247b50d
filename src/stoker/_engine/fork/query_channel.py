"""Questions to the zygote beside the units: by any thread, by a signal's handler, also while a batch is waited for."""

from __future__ import annotations

import select
import threading
import time

from stoker._engine.messages import AskStacks, AskWorkers, ReportAnswer
from stoker._engine.process.channel import Channel


class QueryChannel:
    """The trainer's end. Thread safe: who asks meanwhile waits for its turn.

    Args:
        channel: to the zygote, for nothing else.
    """

    def __init__(self, channel: Channel[ReportAnswer]) -> None:
        self._channel = channel
        self._lock = threading.Lock()  # among threads of the trainer alone
        self._number = 0

    def ask(self, question: type[AskStacks | AskWorkers], seconds: float) -> object:
        """Returns the answer; None if there is none within this time, or the zygote has ended."""
        until = time.monotonic() + seconds
        if not self._lock.acquire(timeout=seconds):  # the handler of a signal may stand above a question
            return None
        try:
            return self._answer(question, until)
        except (OSError, ValueError):  # it was closed meanwhile
            return None
        finally:
            self._lock.release()

    def _answer(self, question: type[AskStacks | AskWorkers], until: float) -> object:
        self._number += 1
        self._channel.send(question(self._number))
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        while not self._channel.ended and (left := until - time.monotonic()) > 0:
            poll.poll(left * 1000)
            for report in self._channel.receive():
                if report.number == self._number:  # else it came too late for an earlier question
                    return report.answer
        return None

    def close(self) -> None:
        """No more questions."""
        self._channel.close()
