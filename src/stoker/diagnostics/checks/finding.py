"""`Finding`: a fact that a check found, why it matters, and the remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["fine", "advice", "problem"]


@dataclass(frozen=True)
class Finding:
    """One finding of `stoker doctor`.

    Attributes:
        level: "fine"; "advice" if it can cost time or memory; "problem" if it fails, or loses data or randomness.
        what: the facts, with numbers.
        why: why it matters; empty if all is fine.
        mend: the command, or the line of the program, that mends it; empty if nothing is to be done.
    """

    name: str
    level: Level
    what: str
    why: str = ""
    mend: str = ""
