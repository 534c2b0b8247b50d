"""Results as a picture: for each goal against somebody else, how many times as good Stoker is. An SVG."""

from __future__ import annotations

import hashlib
import io
import json
import textwrap
from typing import Any

COLOURS = {True: "#2a7f62", False: "#b4433a"}
LINE = 0.24
"""Inches for a bar."""
LABEL = 70
"""Characters of a name on one line."""


def drawn(results: list[dict[str, Any]]) -> str:
    """A bar for each goal, from 1 to the right where Stoker is better; where to get, as a mark; red if it is missed."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter

    bars = _bars(results)
    names = [textwrap.fill(name, LABEL) for name, *_ in bars]
    figure = Figure((10, 0.9 + LINE * sum(name.count("\n") + 1 for name in names)), layout="constrained")
    axes = figure.add_subplot()
    place = 0.0
    places = []
    for name, (_, better, goal, met) in zip(names, bars, strict=True):
        lines = name.count("\n") + 1
        places.append(place + lines / 2)
        axes.barh(places[-1], better - 1, left=1, height=0.65, color=COLOURS[met])
        axes.vlines(goal, places[-1] - 0.42, places[-1] + 0.42, color="black", linewidth=2)
        place += lines
    axes.set(xscale="log", ylim=(place, 0), xlabel="Stoker is so many times as good (its goal: the black mark)")
    axes.set_yticks(places, names, fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(LogFormatter())
    axes.axvline(1, color="#666", linewidth=0.8)
    axes.grid(axis="x", color="#ddd")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    file = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "stoker", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Description": shows(results)})
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def shows(results: list[dict[str, Any]]) -> str:
    """What stands in the picture of these results, whichever release of matplotlib has drawn it."""
    return "data " + hashlib.sha256(json.dumps(_bars(results)).encode()).hexdigest()


def _bars(results: list[dict[str, Any]]) -> list[tuple[str, float, float, bool]]:
    """Name, how many times as good, how many times as good is the goal, and whether it is met."""
    bars = []
    for case in (case for result in results for case in result["cases"]):
        for goal in case["goals"]:
            spread = case["ratios"][goal["figure"]].get(goal["against"])
            if spread is None or not goal.get("headline", True):
                continue
            more_is_better = goal["at_least"] is not None
            ratio, bound = spread["median"], goal["at_least"] if more_is_better else goal["at_most"]
            if ratio > 0:
                name = f"{case['name']}: {goal['figure']}, beside {goal['against']}"
                bars.append((name, *((ratio, bound) if more_is_better else (1 / ratio, 1 / bound)), goal["met"]))
    return bars
