"""Results as a picture: for each goal against a rival, how many times as good Stoker is. An SVG."""

from __future__ import annotations

import hashlib
import io
import json
import textwrap
from collections.abc import Iterator
from typing import Any

COLOURS = {True: "#2a7f62", False: "#b4433a"}
LINE = 0.24
"""Inches for a bar."""
LABEL = 85
"""Characters of a name on one line."""


def drawn(results: list[dict[str, Any]]) -> str:
    """A bar for each goal, from 1 to the right where Stoker is better; where to get, as a mark; red if it is missed.

    Bars stand together under the question that they answer.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    lines = [line for question, bars in _bars(results) for line in (("", None), (question, None), *bars)][1:]
    names = [textwrap.fill(name, LABEL) for name, _ in lines]
    heights = [name.count("\n") + 1 for name in names]
    figure = Figure((12, 0.9 + LINE * sum(heights)), layout="constrained")
    axes = figure.add_subplot()
    places = [sum(heights[:number]) + height / 2 for number, height in enumerate(heights)]
    for place, (_, measured) in zip(places, lines, strict=True):
        if measured is not None:
            better, goal, met = measured
            axes.barh(place, better - 1, left=1, height=0.65, color=COLOURS[met])
            axes.vlines(goal, place - 0.42, place + 0.42, color="black", linewidth=2)
            axes.text(max(better, goal, 1) * 1.08, place, f"{better:.3g}", va="center", fontsize=8)
    axes.set(xscale="log", ylim=(sum(heights), 0), xlabel="times as good")
    axes.set_yticks(places, names, fontsize=8)
    for label, (_, measured) in zip(axes.get_yticklabels(), lines, strict=True):
        label.set_fontweight("normal" if measured else "bold")
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter("{x:g}x")
    axes.axvline(1, color="#666", linewidth=0.8)
    axes.grid(axis="x", color="#ddd")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    meanings = [
        Patch(color=COLOURS[True], label="goal met"),
        Patch(color=COLOURS[False], label="goal missed"),
        Line2D([], [], color="black", linewidth=2, label="the goal"),
    ]
    figure.legend(handles=meanings, loc="outside upper right", ncols=3, frameon=False, fontsize=8)
    file = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "stoker", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Description": shows(results)})
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def shows(results: list[dict[str, Any]]) -> str:
    """What stands in the picture of these results, whichever release of matplotlib has drawn it."""
    return "data " + hashlib.sha256(json.dumps(_bars(results)).encode()).hexdigest()


Bar = tuple[str, tuple[float, float, bool]]
"""Name, and how many times as good, how many times as good is the goal, and whether it is met."""


def _bars(results: list[dict[str, Any]]) -> list[tuple[str, list[Bar]]]:
    """Questions, as far as there is a goal against a rival, each with its bars."""
    found = []
    for result in results:
        question, _, _ = result["question"].strip().partition("\n\n")
        bars = [bar for case in result["cases"] for goal in case["goals"] for bar in _bar(case, goal)]
        if bars:
            found.append((" ".join(question.split()), bars))
    return found


def _bar(case: dict[str, Any], goal: dict[str, Any]) -> Iterator[Bar]:
    spread = case["ratios"][goal["figure"]].get(goal["against"])
    if spread is None or not goal.get("headline", True):
        return
    more_is_better = goal["at_least"] is not None
    ratio, bound = spread["median"], goal["at_least"] if more_is_better else goal["at_most"]
    if ratio > 0:
        name = f"{case['name']}: {goal['figure']}, beside {goal['against']}"
        yield name, (*((ratio, bound) if more_is_better else (1 / ratio, 1 / bound)), goal["met"])
