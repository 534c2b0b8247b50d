"""Faults before, during and after `state_dict()` change neither the state nor what follows from it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stoker
from tests.faults.runs import BACKENDS, N, Once, Samples, is_killed, loader, plain, story

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::stoker.StokerWarning")]

FORKED = BACKENDS["two workers"]


class Numbered(stoker.IterableDataset[Any]):
    """Knows where it stands."""

    def __init__(self) -> None:
        self._next: int | None = None

    def __iter__(self) -> Iterator[Any]:
        info, rng = stoker.get_worker_info(), stoker.sample_rng()
        if self._next is None:
            self._next = 0 if info is None else info.id
        while self._next < N:
            number, self._next = self._next, self._next + (1 if info is None else info.num_workers)
            yield number, rng.random_generator.random()

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next = state["next"]


def kill_workers(iterator: Any) -> None:
    """All of them, and waits until they are gone."""
    for pid in iterator._backend.pids[1:]:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                os.kill(pid, signal.SIGKILL)
                select.select([descriptor], [], [])
            finally:
                os.close(descriptor)


def kill_zygote(iterator: Any) -> None:
    os.kill(iterator._backend.pids[0], signal.SIGKILL)


@pytest.mark.parametrize("dataset", [Samples, Numbered])
@pytest.mark.parametrize("fault", [kill_workers, kill_zygote])
def test_faults_change_no_state(fault: Callable[[Any], None], dataset: Any) -> None:
    """Before it is taken, after it is taken, and while the loader tells of the fault."""

    def make(**more: Any) -> Any:
        kind = {} if dataset is Numbered else {"shuffle": True}
        return loader(dataset(), max_restarts=100, **kind, **FORKED, **more)

    calm, states, whole = make(), [], []
    for batch in calm:
        whole.append(plain(batch))
        states.append(plain_state(calm))
    for count in range(1, len(whole), 3):
        during: list[Any] = []
        made = make(on_event=lambda event, during=during: during.append(event.kind))
        iterator = iter(made)
        for number in range(count):
            assert plain(next(iterator)) == whole[number]
        before = plain_state(made)
        fault(iterator)
        assert plain_state(made) == before == states[count - 1]
        rest = []
        for batch in iterator:
            rest.append(plain(batch))
            assert plain_state(made) == states[count + len(rest) - 1]
        assert rest == whole[count:]
        resumed = make()
        resumed.load_state_dict(json.loads(before))
        iterator, rest = iter(resumed), []
        for batch in iterator:
            rest.append(plain(batch))
            if len(rest) == 1:
                fault(iterator)
        assert rest == whole[count:]


def plain_state(made: Any) -> str:
    return json.dumps(made.state_dict(), sort_keys=True)


def test_a_state_taken_while_the_loader_tells_of_a_fault(tmp_path: Path) -> None:
    states: list[str] = []
    made = loader(
        Samples({9: Once(tmp_path / "once", is_killed)}),
        shuffle=True,
        on_event=lambda event: states.append(plain_state(made)),
        **FORKED,
    )
    calm = loader(Samples(), shuffle=True)
    before = calm.state_dict()
    known = set()
    for _ in calm:
        known.add(plain_state(calm))
        known.add(json.dumps({**before, "seed": calm.state_dict()["seed"]}, sort_keys=True))  # begun, nothing delivered
    whole = story(made)
    assert len(states) == 1 and states[0] in known
    resumed = loader(Samples(), shuffle=True)
    resumed.load_state_dict(json.loads(states[0]))
    rest = story(resumed)
    assert rest == whole[len(whole) - len(rest) :]
