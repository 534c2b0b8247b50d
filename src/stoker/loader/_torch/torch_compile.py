"""Keeps `torch.compile` out of Stoker's code when a compiled function contains the loop over a loader.

Dynamo traces every call of such a function except calls into packages on its skip list. The list has torch's own
loader; Stoker is added here. Without `torch.compile` nothing is done and nothing is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

C = TypeVar("C", bound=Callable[..., Any])

_entered: Any = None
"""The module of Dynamo's rules to which Stoker was added."""


def untraced(function: C) -> C:
    """Marks a function so that Dynamo does not trace it (as `torch.compiler.disable`, which imports Dynamo)."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


def keep_dynamo_out() -> None:
    """Adds Stoker to Dynamo's skip list if Dynamo is loaded and its rules have `add`."""
    global _entered
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not _entered:
        _entered = rules
        if callable(add := getattr(rules, "add", None)):
            add("stoker")
