"""`ProfileOrder`: the loader and batches to profile, for the processes of a program. Imports the standard library."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class ProfileOrder:
    """The loader and the batches to profile.

    Attributes:
        folder: where each process writes its profiles.
        batches: number of batches of a loader after which the program ends.
        site: the line that iterates ("train.py:31"); None for the first loader that has given so many.
        stacks: whether the stacks of workers are sampled.
    """

    folder: str
    batches: int
    site: str | None = None
    stacks: bool = False

    def as_text(self) -> str:
        """Returns the order as text for a variable of the environment."""
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> ProfileOrder:
        """Returns the order that `as_text` gave."""
        return cls(**json.loads(text))
