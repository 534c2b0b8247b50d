"""One run of a soak: a calm model, and loaders of all kinds that go on where the last one stopped, among faults."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from plan import Plan
from torment import Torment

import stoker

OF_SAMPLES = (ValueError, stoker.WorkerDiedError, stoker.StalledError, stoker.ErrorBudgetError)
"""What a bad sample raises: its own error, its worker's death or end, and that nothing can take its place."""

AN_ERROR = "an error"
"""Stands in the place of its batch."""


class Different(AssertionError):
    """A run did not give what the calm one gave."""


def run(chance: random.Random, folder: Path, counts: Counter[str], diary: list[str]) -> None:
    """One run.

    Args:
        chance: what is drawn, is drawn with it.
        folder: for files.
        counts: of what happened.
        diary: is told what the run is about, and what is done in it.

    Raises:
        Different: the batches are not those of the calm run.
    """
    plan = Plan(chance, folder)
    diary.append(plan.told)
    calm = plan.calm()
    model = [[name for name, _ in received(iter(calm))] for _ in range(plan.epochs)]
    state: str | None = None
    epoch, got, ordered = 0, list[str](), True
    kept: list[tuple[str, Any]] = []
    while epoch < plan.epochs:
        loader = plan.loader(diary)
        counts["loaders"] += 1
        if state is not None:
            loader.load_state_dict(json.loads(state))
            counts["resumed"] += 1
        left = chance.choice([1, 5, 20, 100, 10_000])
        torment = Torment(chance, len(model[0]), counts, diary)
        while left and epoch < plan.epochs:
            iterator = iter(loader)
            ordered = ordered and loader.in_order
            for name, batch in received(iterator, torment):
                got.append(name)
                if name == AN_ERROR:
                    diary.append(f"batch {len(got)} of epoch {epoch}: {batch}")
                else:
                    kept = [*kept[-3:], (name, batch)]
                left -= 1
                if not left:
                    break
            else:
                compare(got, model[epoch], ordered, f"epoch {epoch}")
                epoch, got, ordered = epoch + 1, [], True
        torment.end()
        state = json.dumps(loader.state_dict())
        for kind, number in loader.report().event_counts.items():
            counts[f"events: {kind}"] += number
        for name, batch in kept:
            if digest(batch) != name:
                raise Different("a batch has changed in the user's hands")
        if chance.random() < 0.5:
            iterator.close()  # else it is left to the garbage
        if chance.random() < 0.5:
            loader.close()
        del iterator, loader
    counts["batches"] += sum(map(len, model))


def received(iterator: Any, torment: Torment | None = None) -> Iterator[tuple[str, Any]]:
    """Each batch, behind what tells it from others; where there was an error, that."""
    while True:
        if torment is not None:
            torment.before_next(iterator)
        try:
            batch = next(iterator)
        except StopIteration:
            return
        except OF_SAMPLES as error:
            if iterator._backend is None:  # it has ended with it
                raise
            yield AN_ERROR, error
        else:
            yield digest(batch), batch


def digest(batch: Any) -> str:
    """What tells a batch from others."""
    leaves = [np.ascontiguousarray(batch[name]) for name in sorted(batch)]
    told = hashlib.blake2b(digest_size=6)
    for leaf in leaves:
        told.update(f"{leaf.dtype} {leaf.shape}".encode() + leaf.tobytes())
    return f"{told.hexdigest()} {leaves[1].tolist()}"  # "index"


def compare(got: list[str], calm: list[str], ordered: bool, what: str) -> None:
    if not ordered:
        got, calm = sorted(got), sorted(calm)
    if got != calm:
        pairs = zip(got, calm, strict=False)
        place = next((k for k, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(got), len(calm)))
        raise Different(
            f"{what}: {len(got)} batches for {len(calm)}, the first other one at {place} ({ordered=}):\n"
            f"  got  {got[place : place + 2]}\n  calm {calm[place : place + 2]}"
        )
