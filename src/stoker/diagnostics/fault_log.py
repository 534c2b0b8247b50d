"""`FaultLog`: the faults of a measured loader, read from the records of its program, counted and in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NAMED = 20
"""Faults of each kind that are kept by themselves; more are only counted."""

WHAT = {
    "death": "worker replaced",
    "poison_sample": "worker replaced",
    "retired": "worker replaced",
    "error": "sample left out",
    "skip": "sample skipped",
    "raised": "error raised",
    "ended": "program failed",
    "stall": "worker hung",
    "retire_failed": "worker kept",
    "restart_delayed": "restart delayed",
    "memory_throttled": "memory short",
    "fork_deadlock": "workers hung",
    "helper_death": "helper replaced",
    "quarantine_failed": "file not written",
}
"""By the kind of an event: a name of two or three words."""

_COUNTED = {
    "worker replaced": ("worker was replaced", "workers were replaced"),
    "sample left out": ("sample was left out", "samples were left out"),
    "sample replaced": ("sample was replaced", "samples were replaced"),
    "sample skipped": ("sample asked to be skipped", "samples asked to be skipped"),
    "error raised": ("error was raised by the loader", "errors were raised by the loader"),
    "program failed": ("error ended the program", "errors ended the program"),
}
"""The names in sentences, for one and for several; the rest is counted as warnings."""

NONE = "no worker was replaced, no sample was left out"
"""The text for a loader of Stoker's without a fault."""


@dataclass
class FaultLog:
    """Faults of a loader.

    Attributes:
        counts: by the names in `WHAT`.
        causes: of workers that were replaced: a signal, an exit code, "hung", "grown or old".
        named: the first of each kind, in order.
    """

    counts: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    named: list[dict[str, Any]] = field(default_factory=list)

    def heed(self, record: Mapping[str, Any]) -> None:
        """Reads a record of `FaultHooks`."""
        kind, count = record["fault"], record["count"]
        what = WHAT.get(kind, kind.replace("_", " "))
        if record.get("outcome") == "replaced":
            what = "sample replaced"
        if what == "worker replaced" and record.get("ends"):
            what = "worker ended"
        if what == "worker replaced":
            self.causes[record.get("why") or ("grown or old" if kind == "retired" else "unknown")] += count
        if "text" in record and sum(one["what"] == what for one in self.named) < NAMED:
            about = {name: record.get(name) for name in ("at", "worker", "batch", "sample", "text")}
            self.named.append({"what": what, **about})
        self.counts[what] += count

    @property
    def text(self) -> str:
        """Returns the counts as a part of a sentence; an empty text if there are none."""
        known = [(count, *_COUNTED[what]) for what, count in self.counts.items() if what in _COUNTED]
        said = [f"{count:,} {one if count == 1 else several}" for count, one, several in known]
        if self.causes:
            causes = [cause if count == 1 else f"{count:,} {cause}" for cause, count in self.causes.items()]
            place = [what for what in self.counts if what in _COUNTED].index("worker replaced")
            said[place] += f" ({', '.join(causes)})"
        if others := sum(count for what, count in self.counts.items() if what not in _COUNTED):
            said.append(f"{others:,} warning{'s' if others > 1 else ''}")
        return ", ".join(said)

    def as_dict(self, begun: float) -> dict[str, Any]:
        """Returns the faults as plain JSON values.

        Args:
            begun: of the run, from which the seconds `at` of each one count.
        """
        named = sorted(self.named, key=lambda one: float(one["at"]))
        return {
            "counts": dict(self.counts),
            "causes": dict(self.causes),
            "named": [{**one, "at": max(0.0, one["at"] - begun)} for one in named],
            "text": self.text,
        }
