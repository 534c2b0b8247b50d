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

INTRODUCTION = """# What befalls which process

What comes of a fault, by what the process is doing. Each cell is a test (`tests/faults/test_matrix.py`), and this page
is made from the same table: an epoch of 24 samples in 6 batches on two workers, with `on_error="raise"`,
`max_restarts=2`, and `stall_action="restart"` where something hangs. Each test also shows that the message names what
happened and where, that `loader.report()` accounts for all samples, and that no process, memory or descriptor stays.

What to choose instead of an error is in [the guide](guides/faults.md).

- **batches are unchanged**: bit for bit and in the order of a calm run. Whoever died was replaced, and what it had in
  hand made again.
- **its batch raises**: `next()` raises in the place of this batch; all others are unchanged. With `on_error="skip"` or
  `"replace"` a sample that is to blame is left out or replaced instead, and nothing is raised.
- **the run ends**: batches that were made are delivered; then this is raised. For deaths nobody is to blame for, these
  were more than `max_restarts`.
"""


def main() -> None:
    """Writes the page, or compares it."""
    text = page()
    if sys.argv[1:] == ["--check"]:
        stale = not PAGE.is_file() or PAGE.read_text() != text
        sys.exit(f"{PAGE.name}: not what the table gives; run tests/faults/matrix/page.py" if stale else 0)
    PAGE.write_text(text)


def page() -> str:
    """The page: a table for faults that come once, one for those that come each time, and why some cannot come."""
    reasons = list(dict.fromkeys(cell.reason for row in CELLS.values() for cell in row.values() if _cannot(cell)))
    return "\n".join(
        [
            INTRODUCTION,
            "## Once\n",
            "The fault comes once; whoever does the same work again is spared.\n",
            _table(lambda cell: cell.once.words, reasons),
            "## Each time\n",
            "Whoever does this work meets the fault. (An exception is raised at once, and nothing is tried again.)\n",
            _table(lambda cell: (cell.always or cell.once).words, reasons),
            "## What cannot come\n",
            "\n".join(f"{number}. {reason}" for number, reason in enumerate(reasons, 1)) + "\n",
            "## The words\n",
            _words("phase", "who is struck", PHASES),
            _words("fault", "what befalls it", FAULTS),
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
