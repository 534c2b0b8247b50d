"""`DataLoader.progress`: a bar for an epoch, drawn by rich; in a notebook by IPython."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Iterator
from typing import Any, Protocol

from stoker.loader.record import record_of

_INTERVAL = 0.1
"""Seconds between two drawings: smooth to the eye, and little work beside batches of some microseconds."""

_WIDE = 75
"""Columns of a terminal, without the name, from which on all is shown; in fewer, rich would cut the counts away."""


class _Bar(Protocol):
    def __init__(self, name: str, total: int | None, at: int) -> None: ...

    def show(self, batches: int, text: str) -> None:
        """Draws the bar at a number of batches."""

    def close(self) -> None:
        """Leaves the bar as it was drawn last, and restores the terminal."""


class RichBar:
    """A bar of rich, drawn without a thread: workers are forked safely from this process only without other threads.

    Args:
        total: batches in the epoch, or None.
        at: batches that the bar begins with.
    """

    def __init__(self, name: str, total: int | None, at: int) -> None:
        from rich import progress
        from rich.console import Console

        console = Console(stderr=True)
        columns: list[progress.ProgressColumn] = [
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[text]}", markup=False),
        ]
        if console.width >= _WIDE + len(name):
            columns = [
                progress.TextColumn("{task.description}", markup=False),
                progress.BarColumn(bar_width=20),
                *columns,
                progress.TimeRemainingColumn(compact=True),
            ]
        self._progress = progress.Progress(*columns, console=console, auto_refresh=False)
        self._task = self._progress.add_task(name, total=total, completed=at, text="")
        self._progress.start()

    def show(self, batches: int, text: str) -> None:
        self._progress.update(self._task, completed=batches, text=text, refresh=True)

    def close(self) -> None:
        self._progress.stop()


def _kind() -> type[_Bar]:
    return NotebookBar if in_notebook() else RichBar


def progress(loader: Any, name: str) -> Iterator[Any]:
    """Returns the iterator of `DataLoader.progress`. The epoch begins at `next()`."""
    return _shown(loader, name, _kind())


def _shown(loader: Any, name: str, kind: type[_Bar]) -> Iterator[Any]:
    batches, record = iter(loader), record_of(loader)
    received = record.progress  # of this epoch, also if another one begins meanwhile
    bar: _Bar = kind(name, _length(loader), received.batches_done)
    try:
        begun = drawn = time.perf_counter()
        waited, text, at = 0.0, "", received.batches_done
        while True:
            asked = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                break
            now = time.perf_counter()
            waited += now - asked
            at, samples = received.batches_done, record.ledger.epoch.delivered
            text = f"{samples / (now - begun):,.0f} samples/s, {waited / (now - begun):.0%} waited"
            if now - drawn >= _INTERVAL:
                bar.show(at, text)
                drawn = now
            yield batch
    finally:
        try:
            bar.show(at, text)
        finally:
            bar.close()


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):  # a stream without a length
        return None


def in_notebook() -> bool:
    """Returns whether the program runs in a kernel of Jupyter, Colab or another front end of IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return getattr(shell, "kernel", None) is not None


class NotebookBar:
    """A bar in the output of a cell. It stays in the notebook that is saved, and needs no ipywidgets."""

    def __init__(self, name: str, total: int | None, at: int) -> None:
        from IPython.display import display

        self._name, self._total, self._at, self._begun = name, total, at, time.perf_counter()
        self._output: Any = display(self._drawn(at, ""), raw=True, display_id=True)

    def show(self, batches: int, text: str) -> None:
        self._output.update(self._drawn(batches, text), raw=True)

    def close(self) -> None:
        """Leaves the bar as it was drawn last."""

    def _drawn(self, batches: int, text: str) -> dict[str, str]:
        words = f"{batches:,}/{'?' if self._total is None else f'{self._total:,}'} {text}"
        if self._total is not None and self._at < batches < self._total:
            passed = time.perf_counter() - self._begun
            minutes, seconds = divmod(round(passed / (batches - self._at) * (self._total - batches)), 60)
            words += f", {minutes}:{seconds:02} left"
        size = "" if self._total is None else f' value="{batches}" max="{max(self._total, 1)}"'
        return {
            "text/plain": f"{self._name} {words}".strip(),
            "text/html": f"<div>{html.escape(self._name)} <progress{size}></progress> {html.escape(words)}</div>",
        }
