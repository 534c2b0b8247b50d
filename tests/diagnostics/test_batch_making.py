"""Sums over the batches that workers have told of."""

from __future__ import annotations

import pytest

from stoker.diagnostics.batch_making import MadeBatch, batch_making
from stoker.diagnostics.measurements import EpochSpans, MeasuredLoader, Span
from stoker.diagnostics.process_tree import TreeSample


def made(begun: float, pid: int, *seconds: float) -> list[MadeBatch]:
    return [MadeBatch(begun + number, one, one / 4, pid) for number, one in enumerate(seconds)]


def test_making_is_the_mean_of_all_epochs() -> None:
    works = [[*made(10.5, 1, 0.8, 0.1, 0.1), *made(10.7, 2, 0.8, 0.1, 0.5)], []]
    known = batch_making(works, [10.0, 15.0])
    assert known is not None and known.seconds == pytest.approx(0.4) and known.on_cpu == pytest.approx(0.25)
    assert known.longest == pytest.approx(5.0)  # 0.8 are first batches
    assert known.start == pytest.approx(0.5)


def test_few_batches_say_nothing() -> None:
    assert batch_making([made(0.0, 1, 0.1, 0.1, 0.1)], [0.0]) is None
    assert batch_making([], []) is None


def test_summary_tells_who_used_the_cpus() -> None:
    loader = MeasuredLoader({"num_workers": 2}, [EpochSpans(10.0, 10.0, [Span(10.0, 14.0, 9, 3.0, 9)])])
    samples = [TreeSample(10.0, 0.0, 0, 3, 0.0, 50.0, 90.0), TreeSample(14.0, 2.0, 0, 3, 0.0, 56.0, 92.0)]
    known = loader.summary(samples)
    assert (known.cpu, known.machine, known.others) == pytest.approx((2.0, 0.75, 0.5))
    unknown = loader.summary([TreeSample(10.0, 0.0, 0, 3), TreeSample(14.0, 2.0, 0, 3)])
    assert (unknown.machine, unknown.others) == (None, 0.0)
