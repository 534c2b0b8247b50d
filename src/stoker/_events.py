"""What happens beside the batches, as a small record that every layer may emit: `DataLoader(on_event=...)` hears it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Event:
    """Something that a user may want to know. It does not end the run, but for a death with `details["ends"]`, which
    is followed by the error that it is the cause of.

    Attributes:
        kind: "death" (a worker's) or "zygote_death" (the helper process's; each is replaced), "blamed" (a sample that
            kills or hangs), "stall", "retired" (a worker that grew too large or old), "stays" (one that did, and whose
            stream nobody else could go on with), "error", "skip" (a sample that was left out or replaced), "sick_birth"
            (workers that hung in their first samples), "held_back" (a worker that could not be started yet),
            "crowded" (workers that wait for their turn, for want of memory), "quarantine_failed", "auto" (the number of
            workers that `num_workers="auto"` has found), "hint" (that workers would help).
        message: a sentence for people.
        time: seconds since 1970.
        worker: number of the worker, if the event concerns one.
        batch: number of the batch in its epoch, if the event concerns one.
        details: more, by name: plain values. Of a death and a stall "index" is the sample's, where it is one.
    """

    kind: str
    message: str
    time: float = field(default_factory=time.time)
    worker: int | None = None
    batch: int | None = None
    details: dict[str, Any] = field(default_factory=dict)


Listener = Callable[[Event], None]
