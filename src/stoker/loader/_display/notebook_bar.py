"""The bar of `DataLoader.progress` in a notebook: an output that is replaced, without a widget."""

from __future__ import annotations

import html
import sys
import time
from typing import Any


def in_notebook() -> bool:
    """Returns whether the program runs in a kernel of Jupyter, Colab or another front end of IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return getattr(shell, "kernel", None) is not None


class NotebookBar:
    """A bar in the output of a cell. It stays in the notebook that is saved, and needs no ipywidgets.

    Args:
        name: in front of the bar.
        total: batches in the epoch, or None.
        at: batches that the bar begins with.
    """

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
