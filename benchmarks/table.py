"""Results as tables: on the terminal, by rich where it is installed, and in Markdown."""

from __future__ import annotations

import math
from typing import Any

Rows = list[list[str]]
WIDTH = 120
"""Characters that a table may take, also on a narrower terminal."""
MANY = 3
"""Others than the first rival, above which each has a row."""


def show(results: dict[str, Any]) -> None:
    """Prints the results of a benchmark."""
    for case in results["cases"]:
        title = f"{results['name']}: {case['name']}"
        header, *rows = rows_of(case)
        try:
            import rich.box
            import rich.console
            import rich.table
        except ImportError:
            print(f"\n{title}\n" + markdown([header, *rows]))
            continue
        table = rich.table.Table(header[0], title=title, title_justify="left", box=rich.box.SIMPLE)
        for name in header[1:]:
            table.add_column(name, justify="right")
        for row in rows:
            table.add_row(*row)
        rich.console.Console(width=max(WIDTH, rich.console.Console().width)).print(table)


def rows_of(case: dict[str, Any]) -> Rows:
    """A row for each figure of a case, a column for each rival and each ratio, and one for the goals.

    Many rivals would make it too wide: then it is a row for each of them.
    """
    first, *others = case["rivals"]
    if len(others) > MANY:
        return _standing(case)
    rows = [["", *case["rivals"], *(f"{first} / {other}" for other in others), "goal"]]
    for figure, by_rival in case["figures"].items():
        cells = [spread(by_rival[rival]) for rival in case["rivals"]]
        cells += [spread(case["ratios"][figure][other]) for other in others]
        goals = [goal_text(goal, case, len(others)) for goal in case["goals"] if goal["figure"] == figure]
        rows.append([figure, *cells, "; ".join(goals)])
    return _filled(rows)


def _standing(case: dict[str, Any]) -> Rows:
    """A row for each rival: its figures, each with the first rival's ratio to it, and the goals beside them."""
    first = case["rivals"][0]
    rows = [["", *(name for figure in case["figures"] for name in (figure, f"{first} / it"))]]
    for rival in case["rivals"]:
        row = [rival]
        for figure, by_rival in case["figures"].items():
            goals = [goal for goal in case["goals"] if goal["figure"] == figure and (goal["against"] or first) == rival]
            cells = [spread(by_rival[rival]), spread(case["ratios"][figure].get(rival))]
            place = 0 if rival == first else 1
            cells[place] = ", ".join(filter(None, [cells[place], *(goal_text(goal, case, 1) for goal in goals)]))
            row += cells
        rows.append(row)
    return _filled(rows)


def _filled(rows: Rows) -> Rows:
    """Without the columns that hold nothing but their name."""
    used = [place for place in range(len(rows[0])) if any(row[place] for row in rows[1:])]
    return [[row[place] for place in used] for row in rows]


def goal_text(goal: dict[str, Any], case: dict[str, Any], others: int) -> str:
    """The goal, and whether it is met; against which rival, if there are several."""
    bound = f">= {number(goal['at_least'])}" if goal["at_least"] is not None else f"<= {number(goal['at_most'])}"
    against = f" x {goal['against']}" if goal["against"] and others > 1 else ""
    came = "not measured" if goal["met"] is None else "met" if goal["met"] else "MISSED"
    return f"{bound}{against}: {came}{', within the spread' if is_level(goal, case) else ''}"


def is_level(goal: dict[str, Any], case: dict[str, Any]) -> bool:
    """Whether some rounds met the goal, and some did not."""
    by_other = case["ratios"] if goal["against"] else case["figures"]
    found = by_other[goal["figure"]].get(goal["against"] or case["rivals"][0])
    bound = goal["at_most"] if goal["at_least"] is None else goal["at_least"]
    return goal["met"] is not None and found is not None and bool(found["min"] < bound < found["max"])


def spread(value: dict[str, Any] | None) -> str:
    """A median with its smallest and largest value."""
    if value is None:
        return ""
    middle = value["median"]
    if isinstance(middle, str):
        return middle
    if len(value["all"]) == 1:
        return number(middle)
    return f"{number(middle)} ({number(value['min'])}..{number(value['max'])})"


def number(value: float) -> str:
    """Three digits that say something."""
    if not value:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def markdown(rows: Rows) -> str:
    """The rows as a table of Markdown, aligned to be read as plain text too."""
    rows = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    widths = [max(3, *(len(row[place]) for row in rows)) for place in range(len(rows[0]))]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in padded]
    rule = "|" + "|".join("-" * (width + 1) + (":" if place else "-") for place, width in enumerate(widths)) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])
