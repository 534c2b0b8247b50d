"""There are more workers than were born with the zygote, within the epoch."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import pytest

from stoker import DataLoader
from stoker._engine.fork.forked_process import Stacks
from stoker._engine.fork.zygote import Zygote
from stoker.errors import StokerWarning

N = 400


class Slow:
    """Samples that take a while, and say who made them."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.003)
        return np.array([index, os.getpid()])


def loader(**settings: Any) -> Any:
    default = {"num_workers": 2, "output": "numpy", "prefetch_factor": 6, "multiprocessing_context": "fork"}
    return DataLoader(Slow(), **default | settings)


@pytest.mark.parametrize("birth", ["fork", "forkserver"])
@pytest.mark.parametrize("size", [1, 4])  # batches of one worker, and of several
def test_added_workers_work_and_the_order_stays(birth: str, size: int) -> None:
    iterator = iter(loader(multiprocessing_context=birth, batch_size=size))
    batches = [next(iterator)]
    iterator._backend.grow(5)
    batches += iterator
    samples = np.concatenate(batches)
    assert samples[:, 0].tolist() == list(range(N))
    assert len(set(samples[:, 1].tolist())) == 5


def test_deaths_of_added_workers_and_the_zygote_are_survived() -> None:
    made = iter(loader())
    samples = [next(made)]
    made._backend.grow(4)
    with pytest.warns(StokerWarning) as told:
        while len(made._backend.pids) < 5:
            samples.append(next(made))
        os.kill(made._backend.pids[-1], signal.SIGKILL)
        samples += [next(made) for _ in range(50)]
        os.kill(made._backend.pids[0], signal.SIGKILL)
        samples += [next(made) for _ in range(50)]
        before = set(np.concatenate(samples)[:, 1].tolist())
        samples += made
    assert np.concatenate(samples)[:, 0].tolist() == list(range(N))
    assert len(set(np.concatenate(samples[-100:])[:, 1].tolist())) == 4 and len(before) > 4
    assert any("was replaced" in str(warning.message) for warning in told)
    assert any("Another helper process is started" in str(warning.message) for warning in told)


def samples_of_an_epoch_that_asks_for_five() -> Any:
    made = iter(loader())
    batches = [next(made)]
    made._backend.grow(5)
    samples = np.concatenate([*batches, *made])
    assert samples[:, 0].tolist() == list(range(N))
    return samples


def test_growth_stops_where_no_worker_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Zygote._fork

    def fork(self: Zygote, number: int) -> None:
        if number >= 3:
            raise OSError(11, "Resource temporarily unavailable")
        plain(self, number)

    monkeypatch.setattr(Zygote, "_fork", fork)
    assert len(set(samples_of_an_epoch_that_asks_for_five()[:, 1].tolist())) == 3


def test_growth_stops_without_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Stacks.grow

    def grow(self: Stacks, workers: int) -> None:
        if workers > 2:
            raise OSError(24, "Too many open files")
        plain(self, workers)

    monkeypatch.setattr(Stacks, "grow", grow)
    assert len(set(samples_of_an_epoch_that_asks_for_five()[:, 1].tolist())) == 2
