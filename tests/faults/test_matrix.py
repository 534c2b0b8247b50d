"""The matrix: each phase of a process's life x each fault, and what comes of it. The table is `matrix/cells.py`.

Each cell states its outcome: batches that are bit for bit those of a calm run, errors of which class in which place;
the samples add up to the epoch; the message says what happened and where; and nothing is left (`tests/conftest.py`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker._engine.fork import forked_process, trainer
from tests.cgroups import limited_to
from tests.faults.matrix.cells import CELLS, HANGS, Cell, Outcome
from tests.faults.matrix.phases import BATCH, LOADERS, Blow, N, Numbers, loader

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::stoker.StokerWarning")]

LIMIT = 16
"""MiB of a cell's cgroup."""


def cases() -> Iterator[Any]:
    for phase, row in CELLS.items():
        for fault, cell in row.items():
            if isinstance(cell, Cell):
                yield pytest.param(phase, fault, cell.once, True, id=f"{phase}-{fault}-once")
                if cell.always is not None:
                    yield pytest.param(phase, fault, cell.always, False, id=f"{phase}-{fault}-always")


@pytest.mark.parametrize(("phase", "fault", "outcome", "once"), list(cases()))
def test_cell_of_the_fault_matrix_has_its_outcome(
    phase: str,
    fault: str,
    outcome: Outcome,
    once: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    group = request.getfixturevalue("cgroup") if fault == "memory cgroup" else None
    struck = tmp_path / "struck"
    monkeypatch.setattr(forked_process, "STACKS", 0.05)
    if fault in HANGS and phase == "helper":  # it is taken for hung when it is, and not before
        monkeypatch.setattr(trainer, "PULSE", 0.05)
        patience = lambda self: 0.3 if struck.exists() else 60.0  # noqa: E731
        monkeypatch.setattr(trainer.ProcessBackend, "_longest_silence", patience)
    settings: dict[str, Any] = {"max_restarts": 2, "timeout": 20}
    if fault in HANGS:
        settings |= {"stall_warning": 0.3, "stall_action": "restart"}
    events: list[Any] = []
    made = LOADERS[phase](Blow(fault, struck, once, group), monkeypatch, on_event=events.append, **settings)

    batches, end = epoch_of(made)

    assert struck.exists()
    size, planned, calm = made.batch_size, len(made), calm_batches(made.batch_size)
    failed = {place: batch for place, batch in enumerate(batches) if isinstance(batch, Exception)}
    assert all(batches[place] == calm[place] for place in range(len(batches)) if place not in failed)
    assert set(failed) in places_of(outcome, planned), (failed, end)
    assert (end is not None) == (outcome.which == "the rest"), end
    raised = [*failed.values(), *([] if end is None else [end])]
    assert all(type(error).__name__ == outcome.error for error in raised), raised
    told = raised or [event.message for event in events if event.kind == outcome.told]
    assert all(re.search(f"(?s){outcome.says}", str(message)) for message in raised), raised
    assert not outcome.says or any(re.search(f"(?s){outcome.says}", str(message)) for message in told), events
    if outcome.told is None and not raised:
        assert not events

    counts = made.report().epoch
    assert counts.planned == N and counts.raised == size * len(failed)
    assert counts.delivered == size * (len(batches) - len(failed))
    assert counts.delivered + counts.raised + counts.not_requested == N
    if end is None:
        assert counts.not_requested == 0


def places_of(outcome: Outcome, planned: int) -> list[set[int]]:
    """Where batches are errors; one of these, where it is chance who is struck."""
    return {
        "none": [set()],
        "the rest": [set()],
        "its own": [{BATCH}],
        "its worker's": [set(range(0, planned, 2)), set(range(1, planned, 2))],
        "all": [set(range(planned))],
    }[outcome.which]


def epoch_of(made: Any) -> tuple[list[bytes | Exception], Exception | None]:
    """The batches of an epoch, errors in their places among them; and the error that ended it."""
    iterator = iter(made)
    found: list[bytes | Exception] = []
    while True:
        try:
            batch = next(iterator)
        except StopIteration:
            return found, None
        except Exception as error:
            if not iterator.is_open:
                return found, error
            found.append(error)
        else:
            found.append(bytes_of(batch))
            del batch
        assert len(found) <= len(made), found


def bytes_of(batch: Any) -> bytes:
    return b"".join(np.asarray(leaf).tobytes() for leaf in batch)


@functools.cache
def calm_batches(size: int) -> list[bytes]:
    made = loader(Numbers(), batch_size=size, num_workers=0, multiprocessing_context=None)
    return [bytes_of(batch) for batch in made]


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """An empty memory cgroup of `LIMIT` MiB: who goes there and takes more is killed."""
    yield from limited_to(LIMIT)
