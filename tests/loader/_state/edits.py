"""States as somebody has changed them, and as earlier versions wrote them."""

from __future__ import annotations

import json
from typing import Any

_HEAD = ("epoch", "seed", "batches", "position", "ahead", "kind")


def edited(state: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Returns a state with other values, in the one value from which a loader loads it too."""
    return {**state, **changes, "below": json.dumps({**json.loads(state["below"]), **changes})}


def formerly(state: dict[str, Any]) -> dict[str, Any]:
    """Returns a state as earlier versions wrote it: `below` lacks what the other keys say, and which generators samples
    draw from, and is None if empty.
    """
    below = {name: value for name, value in json.loads(state["below"]).items() if name not in (*_HEAD, "drawn")}
    return {**state, "below": json.dumps(below) if below else None}
