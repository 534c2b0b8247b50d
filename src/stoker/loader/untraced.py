"""Keeps `torch.compile` out of our code, where a compiled function contains the loop over a loader.

Dynamo follows every call of such a function, but for those into packages that it is told to leave alone: torch's own
loader is among them by birth, ours has to be entered. Nothing is done, and nothing imported, where nobody compiles.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

C = TypeVar("C", bound=Callable[..., Any])

_entered: Any = None
"""The rules of Dynamo's that have us by now."""


def untraced(function: C) -> C:
    """Marks a function that Dynamo calls as it is (`torch.compiler.disable` marks likewise, and imports Dynamo)."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


def keep_dynamo_out() -> None:
    """Enters this package among those that Dynamo leaves alone, if it is loaded by now and can be told."""
    global _entered
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not _entered:
        _entered = rules
        if callable(add := getattr(rules, "add", None)):
            add("stoker")
