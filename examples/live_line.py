"""The line on the terminal that tells how the training goes."""

from __future__ import annotations

import time
from typing import Any

from figures import Clock
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

REFRESH_AFTER = 0.1  # seconds
NUMBERS = "{task.fields[rate]:,.0f} images/s, waited {task.fields[wait]:.0%}, loss {task.fields[loss]:.2f}"


class LiveLine:
    """Shows epoch, batches, images/s, share of the time waited and loss; nothing where the output is no terminal.

    It has no thread of its own, because loaders fork. As a string it says how far the training came.
    """

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(NUMBERS))
        console = Console()
        self._progress = Progress(
            *columns,
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,  # workers inherit what is redirected
            redirect_stderr=False,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", visible=False, rate=0.0, wait=0.0, loss=0.0)
        self._refreshed = 0.0
        self._how_far = "before the first batch"

    def __enter__(self) -> LiveLine:
        self._progress.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._progress.stop()

    def __str__(self) -> str:
        return self._how_far

    def show(self, epoch: str, batch: int, batches: int, clock: Clock, loss: float) -> None:
        self._how_far = f"in {epoch}, after {batch} of {batches} batches"
        self._progress.update(
            self._task,
            visible=True,
            description=epoch,
            completed=batch,
            total=batches,
            rate=clock.rate,
            wait=clock.wait_share,
            loss=loss,
        )
        if time.monotonic() - self._refreshed > REFRESH_AFTER:
            self._progress.refresh()
            self._refreshed = time.monotonic()

    def print(self, text: str) -> None:
        """Prints a line that stays."""
        self._progress.console.print(text, soft_wrap=True)
