"""Results as a picture: for each goal against somebody else, how many times as good Stoker is. An SVG."""

from __future__ import annotations

import math
from html import escape
from typing import Any

import table

WIDTH, LABELS, LINE, TOP = 1000, 560, 18, 34
MOST = 100.0
"""The ratio at the right edge; 1 / MOST is at the left edge."""
COLOURS = {True: "#2a7f62", False: "#b4433a"}


def drawn(results: list[dict[str, Any]]) -> str:
    """A bar for each goal, from 1 to the right where Stoker is better; where to get, as a mark; red if it is missed."""
    bars = [bar for result in results for case in result["cases"] for bar in _bars(case)]
    height = TOP + LINE * len(bars) + 6
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"',
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LABELS}" y="12">Stoker is so many times as good (its goal: the black mark)</text>',
    ]
    for value in (0.01, 0.1, 1, 10, 100):
        x = _x(value)
        parts += [
            f'<line x1="{x}" x2="{x}" y1="{TOP - 6}" y2="{height}" stroke="{"#666" if value == 1 else "#ddd"}"/>',
            f'<text x="{x}" y="{TOP - 9}" text-anchor="middle" fill="#666">{table.number(value)}</text>',
        ]
    for place, (name, better, goal, met) in enumerate(bars):
        y = TOP + LINE * place
        left, right = sorted((_x(1), _x(better)))
        parts += [
            f'<text x="{LABELS - 8}" y="{y + 11}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{left}" y="{y + 2}" width="{right - left:.1f}" height="{LINE - 6}" fill="{COLOURS[met]}"/>',
            f'<line x1="{_x(goal)}" x2="{_x(goal)}" y1="{y}" y2="{y + LINE - 2}" stroke="black" stroke-width="2"/>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def _bars(case: dict[str, Any]) -> list[tuple[str, float, float, bool]]:
    """Name, how many times as good, how many times as good is the goal, and whether it is met."""
    bars = []
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


def _x(value: float) -> float:
    share = math.log(min(max(value, 1 / MOST), MOST) * MOST) / math.log(MOST**2)
    return round(LABELS + share * (WIDTH - LABELS - 20), 1)
