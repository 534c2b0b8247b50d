"""`DataLoader.report()`: outcomes of samples, events of workers, and memory, on one screen.

Times are local in the text, as in a log, and ISO 8601 in UTC in `as_dict()`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.events import Event
from stoker.loader._accounting.ledger import Counts, Ledger, Like, in_utc, on_one_line, plain

FATES = ("delivered", "replaced", "skipped", "quarantined", "raised", "not_requested")

_ROWS = {"skipped": "left out (SkipSample)", "quarantined": "left out (errors)"}
"""The rows of fates whose names alone do not say what happened."""

MACHINES = 8
"""Other machines that the text lists; of more, their sum, and those with the most and the fewest batches."""

SHOWN = 4
"""Events of a kind, and classes of exceptions, that the text shows; `as_dict()` has more."""

_EVENTS = {
    "death": "deaths",
    "helper_death": "helper's deaths",
    "poison_sample": "deadly samples",
    "stall": "stalls",
    "retired": "retired",
    "fork_deadlock": "fork deadlocks",
    "restart_delayed": "restarts delayed",
    "memory_throttled": "memory throttled",
    "quarantine_failed": "quarantine",
    "auto": "workers",
    "hint": "hint",
}
"""Events and their rows. Errors and skips are counted with the samples."""


POOL = ("name", "ranks", "own_seconds", "all_seconds")
"""Keys of `Report.pool`."""

STORE = ("own", "used", "room")
"""Keys of `Report.object_store`."""


@dataclass(frozen=True)
class Report:
    """A loader's counts at one moment, as returned by `loader.report()`. `print` it, or take `as_dict()`.

    Attributes:
        epoch: outcomes of the samples of the latest epoch (`delivered`, `replaced`, `skipped`, `quarantined`, `raised`,
            `not_requested`; `planned` is their sum), and the seconds that were waited and spent.
        total: the same of all epochs since the loader was made.
        epoch_number: number of the latest epoch, or None before the first.
        epochs: number of epochs begun.
        event_counts: events by kind, since the loader was made.
        events: the latest of them, by kind.
        memory: bytes by name.
        stacks: the workers' stacks, if requested.
        images: where Pillow decodes whole JPEGs, and the change to make; None where it does not, or that is not known.
        copies: of batches to devices, since the loader was made: `batches`, `bytes`, those of them that were `staged`
            in pinned memory, and where events tell, the `seconds` of `timed` bytes and those that the device `stalled`.
        pool: of workers that this loader shares (`stoker.Ray(pool=)`): its `name`, the `ranks` that share it now, and
            the seconds that units took in it, this loader's `own_seconds` and `all_seconds`.
        machines: other machines that made batches of the latest epoch: `batches`, and their `bytes` on the network.
        object_store: bytes in Ray's: the loader's `own`, those `used` by anybody on all machines, and the `room` there.
    """

    epoch: Counts
    total: Counts
    epoch_number: int | None = None
    epochs: int = 0
    event_counts: Mapping[str, int] = field(default_factory=dict)
    events: Mapping[str, tuple[Event, ...]] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    stacks: str | None = None
    images: str | None = None
    copies: Mapping[str, float] = field(default_factory=dict)
    machines: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    pool: Mapping[str, Any] = field(default_factory=dict)
    object_store: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        memory: Mapping[str, int] | None = None,
        stacks: str | None = None,
        images: str | None = None,
        copies: Mapping[str, float] | None = None,
        pool: Mapping[str, Any] | None = None,
    ) -> Report:
        """Returns a report of a ledger's present counts; later counts are not seen."""
        return cls(
            ledger.epoch.copy(),
            ledger.total,
            ledger.epoch_number,
            ledger.epochs,
            {kind: happened.count for kind, happened in ledger.events.items()},
            {kind: tuple(happened.latest) for kind, happened in ledger.events.items()},
            dict(memory or {}),
            stacks,
            images,
            dict(copies or {}),
            {name: {"batches": batches, "bytes": size} for name, (batches, size) in ledger.machines.items()},
            dict(pool or {}),
            dict(zip(STORE, ledger.object_store, strict=True)) if ledger.object_store[0] else {},
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(
            {"images": None, "copies": {}, "machines": {}, "pool": {}, "object_store": {}, **state}
        )  # a pickle of before has none

    def as_dict(self) -> dict[str, Any]:
        """Returns the report as plain JSON values."""
        plain = {
            "epoch_number": self.epoch_number,
            "epochs": self.epochs,
            "epoch": _plain_counts(self.epoch),
            "total": _plain_counts(self.total),
            "events": {
                kind: {"count": count, "latest": [_plain_event(event) for event in self.events.get(kind, ())]}
                for kind, count in self.event_counts.items()
            },
            "memory": dict(self.memory),
            "stacks": self.stacks,
            "images": self.images,
            "copies": dict(self.copies),
            "pool": dict(self.pool),
            "object_store": dict(self.object_store),
            "machines": {name: dict(counts) for name, counts in self.machines.items()},
        }
        values: dict[str, Any] = json.loads(json.dumps(plain, default=repr))
        return values

    def __str__(self) -> str:
        rows = list(self._rows())
        width = max(len(name) for name, _ in rows)
        text = "\n".join(f"{name:<{width}}  {value}".rstrip() for name, value in rows)
        return text if self.stacks is None else f"{text}\n\n{self.stacks}"

    def _rows(self) -> Iterator[tuple[str, str]]:
        yield "epoch", self._epoch()
        for fate in FATES:
            yield _ROWS.get(fate, fate.replace("_", " ")), self._samples(fate)
        yield from self._faults()
        for kind in dict.fromkeys((*_EVENTS, *self.event_counts)):
            if self.event_counts.get(kind) and kind not in ("error", "skip"):
                yield _EVENTS.get(kind, kind.replace("_", " ")), self._events(kind)
        if self.epoch.spent > 0:
            waited, spent = self.epoch.waited, self.epoch.spent
            yield "waiting", f"{waited:,.1f} s of {spent:,.1f} s ({waited / spent:.1%}) were spent waiting for a batch"
        for number, text in enumerate(machines_in_words(self.elsewhere())):
            yield "" if number else "machines", text
        if self.copies:
            yield "copies", copies_in_words(self.copies)
        if self.images is not None:
            yield "images", self.images
        if self.memory:
            yield "memory", ", ".join(f"{name} {_size(size)}" for name, size in self.memory.items())

    def elsewhere(self) -> dict[str, Any]:
        """Returns what is known of other machines, as plain values: those with batches of the latest epoch, its batches
        and seconds, the object store and the pool.
        """
        return {
            "machines": {name: dict(counts) for name, counts in self.machines.items()},
            "batches": self.epoch.batches,
            "seconds": self.epoch.spent,
            "object_store": dict(self.object_store),
            "pool": dict(self.pool),
        }

    def _epoch(self) -> str:
        if self.epoch_number is None:
            return "none has begun"
        planned = "samples, number unknown" if self.epoch.planned is None else f"{self.epoch.planned:,} samples"
        all_epochs = f"; in brackets, all {self.epochs:,} epochs" if self.epochs > 1 else ""
        return f"{self.epoch_number}: {planned}; batches delivered: {self.epoch.batches:,}{all_epochs}"

    def _samples(self, fate: str) -> str:
        number, in_all = getattr(self.epoch, fate), getattr(self.total, fate)
        if number is None:
            return "unknown"
        whole = self.epoch.planned or self.epoch.requested
        share = f" ({number / whole:.2%})" if number else ""
        together = f"  [{in_all:,}]" if self.epochs > 1 and in_all is not None else ""
        return f"{number:,}{share}{together}"

    def _faults(self) -> Iterator[tuple[str, str]]:
        """Yields the rows of all faults since the loader was made, including the latest epoch's."""
        most = sorted(self.total.faults.values(), key=lambda like: -like.count)
        for number, like in enumerate(most[:SHOWN]):
            yield "" if number else "faults", _fault(like)
        if len(most) > SHOWN:
            yield "", f"{sum(like.count for like in most[SHOWN:]):,} of other classes"

    def _events(self, kind: str) -> str:
        count, latest = self.event_counts[kind], self.events.get(kind, ())[-SHOWN:]
        if kind in ("auto", "hint") and latest:
            return latest[-1].message
        shown = ", ".join(
            ("" if event.worker is None else f"worker {event.worker} ") + f"at {_clock(event.time)}" for event in latest
        )
        return f"{count:,}: {'the latest ' if count > len(latest) else ''}{shown}"


def machines_in_words(found: Mapping[str, Any]) -> list[str]:
    """Returns lines on other machines: each, or of many the sum; the object store; the pool.

    Args:
        found: `Report.elsewhere()`.
    """
    spent, machines, lines = found["seconds"], found["machines"], []

    def made(batches: int, size: int) -> str:
        rate = f" ({_figure(batches / spent)}/s, {_figure(size / spent / 1e6)} MB/s)" if spent > 0 else ""
        return f"{batches:,} batches, {_size(size)} over the network{rate}"

    by_batches = sorted(machines, key=lambda name: -machines[name]["batches"])
    if len(machines) > MACHINES:
        batches, size = (sum(counts[key] for counts in machines.values()) for key in ("batches", "bytes"))
        lines.append(f"{len(machines)} other machines: {made(batches, size)}")
        by_batches = [by_batches[0], by_batches[-1]]
    for number, name in enumerate(by_batches):
        which = ("the most by ", "the fewest by ")[number] if len(machines) > MACHINES else ""
        lines.append(f"{which}{name}: {made(machines[name]['batches'], machines[name]['bytes'])}")
    if found["object_store"]:
        own, used, room = (_size(found["object_store"][key]) for key in STORE)
        lines.append(f"object store of Ray: {own} put by this loader; {used} of {room} used on all machines")
    if found["pool"]:
        name, ranks, own, everyone = (found["pool"][key] for key in POOL)
        share = f"; this one has had {own / everyone:.0%} of the time of its workers" if everyone else ""
        lines.append(
            f"pool {name!r}, {f'shared by {ranks:,} rank(s)' if ranks else 'in which no worker has begun'}{share}"
        )
    return lines


def copies_in_words(copies: Mapping[str, float], bus: float | None = None) -> str:
    """Returns a sentence on the copies of batches to devices.

    Args:
        copies: `Report.copies`.
        bus: bytes in a second that the devices' link carries, if that is known.
    """
    text = f"{_size(int(copies['bytes']))} of {int(copies['batches']):,} batches were copied to the device"
    if copies["staged"]:
        text += f", {copies['staged'] / copies['bytes']:.0%} of them through pinned memory"
    if copies.get("decoded"):
        by_cpu = int(copies["decoded_by_cpu"])
        text += f"; {int(copies['decoded']):,} images were decoded there" + (f", but for {by_cpu:,}" if by_cpu else "")
    if copies["seconds"] > 0:
        hidden = 1 - min(1.0, copies["stalled"] / copies["seconds"])
        of_bus = "" if bus is None else f" of the {bus / 1e9:.0f} of its bus"
        text += (
            f"; {copies['timed'] / copies['seconds'] / 1e9:,.1f} GB/s{of_bus}, {hidden:.0%} of the time beside the step"
        )
    return text


def _fault(like: Like) -> str:
    first = like.first
    sample = "" if first.index is None else f" sample {first.index}"
    sample = f" batch {first.batch}" if first.kind == "batch" else sample
    described = f" ({first.description})" if first.description else ""
    return f"{like.count:,} {like.name}, first{sample}{described} at {_clock(first.time)}" + on_one_line(first)


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _figure(value: float) -> str:
    return f"{value:,.1f}" if value >= 1 else f"{value:.2g}"


def _size(size: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"


def _plain_counts(counts: Counts) -> dict[str, Any]:
    return {
        "planned": counts.planned,
        **{fate: getattr(counts, fate) for fate in FATES},
        "batches": counts.batches,
        "waited": counts.waited,
        "spent": counts.spent,
        "faults": {name: {"count": like.count, "first": plain(like.first)} for name, like in counts.faults.items()},
    }


def _plain_event(event: Event) -> dict[str, Any]:
    return {
        "time": in_utc(event.time),
        "message": event.message,
        "worker": event.worker,
        "batch": event.batch,
        "details": {str(name): value for name, value in event.details.items()},
    }
