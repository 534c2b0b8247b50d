"""Writes `docs/fault-matrix.md` from the table that the tests show (`cells.py`).

python tests/faults/matrix/page.py            # writes it
python tests/faults/matrix/page.py --check    # says whether it is what the table gives, and fails if not
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from cells import CELLS, FAULTS, PHASES, Cannot, Cell

PAGE = Path(__file__).parents[3] / "docs" / "fault-matrix.md"

INTRODUCTION = """# What happens when a process fails

The outcome of each fault, by what the process was doing. Each cell is a test (`tests/faults/test_matrix.py`), and this
page is generated from the same table: an epoch of 24 samples in 6 batches on two workers, with `on_error="raise"`,
`max_restarts=2`, and `stall_action="restart"` if something hangs. Each test also checks that the message names what
happened and where, that `loader.report()` accounts for all samples, and that no process, memory or descriptor is left.

[The guide](guides/faults.md) says what you can choose instead of an error.

- **batches are unchanged**: bit for bit and in the order of a run without faults. The process that died was replaced,
  and its unfinished batches were made again.
- **its batch raises**: `next()` raises in the place of this batch; all others are unchanged. With `on_error="skip"` or
  `"replace"`, if a sample is the cause, it is left out or replaced instead, and nothing is raised.
- **the run ends**: finished batches are delivered; then this error is raised. A `WorkerDiedError` here means that more
  workers than `max_restarts` died without a sample being at fault, or that the helper process hung before it had
  started any.
"""


def main() -> None:
    """Writes the page, or compares it."""
    text = page()
    if sys.argv[1:] == ["--check"]:
        stale = not PAGE.is_file() or PAGE.read_text() != text
        sys.exit(f"{PAGE.name}: not what the table gives; run tests/faults/matrix/page.py" if stale else 0)
    PAGE.write_text(text)


def page() -> str:
    """The page: the words, a table for faults that come once, one for those that come each time, why some cannot."""
    reasons = list(dict.fromkeys(cell.reason for row in CELLS.values() for cell in row.values() if _cannot(cell)))
    return "\n".join(
        [
            INTRODUCTION,
            "## The words\n",
            _words("phase", "the process that fails", PHASES),
            _words("fault", "what happens to it", FAULTS),
            "## Once\n",
            "The fault happens once; if the same work is done again, it succeeds.\n",
            _table(lambda cell: cell.once.words, reasons),
            "## Each time\n",
            "Every process that does this work fails. (An exception is raised at once, and nothing is tried again.)\n",
            _table(lambda cell: (cell.always or cell.once).words, reasons),
            "## What cannot happen\n",
            "\n".join(f"{number}. {reason}" for number, reason in enumerate(reasons, 1)) + "\n",
        ]
    )


def _table(words: Callable[[Cell], str], reasons: list[str]) -> str:
    def shown(cell: Cell | Cannot) -> str:
        return f"({reasons.index(cell.reason) + 1})" if isinstance(cell, Cannot) else words(cell)

    lines = [["", *FAULTS], ["---"] * (len(FAULTS) + 1)]
    lines += [[f"**{phase}**", *(shown(CELLS[phase][fault]) for fault in FAULTS)] for phase in PHASES]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _words(what: str, meaning: str, of: dict[str, str]) -> str:
    return f"| {what} | {meaning} |\n|---|---|\n" + "".join(f"| {name} | {text} |\n" for name, text in of.items())


def _cannot(cell: Cell | Cannot) -> bool:
    return isinstance(cell, Cannot)


if __name__ == "__main__":
    main()
