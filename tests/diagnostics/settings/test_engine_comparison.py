"""Two engines compared: ratios by round, their spread, and a sentence that claims no more than that."""

from __future__ import annotations

import pytest

from stoker.diagnostics.measurements import EpochSpans, MeasuredLoader, Span
from stoker.diagnostics.settings.engine_comparison import (
    EngineRun,
    Spread,
    compared,
    conclusion,
    figures_as_dict,
    main_loader,
    run_of,
    same_loaders,
)


def run(engine: str, rate: float, share: float = 0.5, memory: int = 100) -> EngineRun:
    return EngineRun(engine, 10, 100, rate, rate, share, 0.1, 1.0, memory)


def loader(site: str, waits: float, rank: str | None = None, dataset: str = "Photos") -> MeasuredLoader:
    """Four batches of 8 samples, of which the first takes a second and the others `waits` each."""
    epoch = EpochSpans(100.0, 100.0, [Span(100.0, 101.0, 1, 1.0, 8)])
    for _ in range(3):
        begun = epoch.until + 0.1
        epoch.spans.append(Span(begun, begun + waits, 1, waits, 8))
    return MeasuredLoader({"site": site, "dataset": dataset, "rank": rank, "num_workers": 0}, [epoch])


def test_ratios_are_those_of_rounds() -> None:
    runs = [run("torch", 100), run("stoker", 150), run("stoker", 330), run("torch", 300), run("torch", 90)]
    rate = compared(runs)[0]
    assert rate.torch == Spread(200, 100, 300) and rate.stoker == Spread(240, 150, 330)
    assert rate.ratio == Spread(1.3, 1.1, 1.5)


def test_one_engine_alone_is_not_compared() -> None:
    assert compared([run("torch", 100)]) == []
    assert compared([]) == []


def test_unknown_memory_and_zero_waits_are_left_out() -> None:
    figures = {one.name: one for one in compared([run("torch", 1, 0.0, 0), run("stoker", 2, 0.1, 0)])}
    assert "memory" not in figures and figures["waited"].ratio is None


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        (
            [(100, 150), (100, 160)],
            "Stoker's engine gives more samples/s: 1.55 times as many (1.50 to 1.60 in 2 rounds).",
        ),
        (
            [(100, 50), (100, 60)],
            "Stoker's engine gives fewer samples/s: 0.55 times as many (0.50 to 0.60 in 2 rounds).",
        ),
        ([(100, 90), (100, 130)], "No difference in samples/s: the ratio is 1.10 (0.90 to 1.30 in 2 rounds)."),
        ([(1000, 1010), (1000, 1012)], "No difference in samples/s: the ratio is 1.01"),
        ([(100, 150)], "in one round: --rounds 3 shows the spread"),
    ],
)
def test_conclusion_claims_no_more_than_the_spread(rates: list[tuple[float, float]], said: str) -> None:
    runs = [one for torch, stoker in rates for one in (run("torch", torch), run("stoker", stoker))]
    assert said in conclusion(compared(runs), len(rates))


def test_a_loop_that_does_not_wait_is_told_so() -> None:
    runs = [run("torch", 100, 0.01), run("stoker", 100, 0.01)] * 2
    assert "waits 1.0% of its time for batches: no loader makes it faster" in conclusion(compared(runs), 2)


def test_the_loader_with_the_most_time_counts() -> None:
    loaders = [loader("test.py:9", 0.1), loader("train.py:3", 0.5), loader("train.py:9", 0.2)]
    assert main_loader(loaders) is loaders[1]
    assert main_loader(loaders, "train.py:9") is loaders[2]
    assert main_loader(loaders, "train.py:8") is None and main_loader([]) is None


def test_ranks_are_added() -> None:
    ranks = [loader("train.py:3", 0.1, "0"), loader("train.py:3", 0.3, "1"), loader("train.py:3", 9, dataset="Other")]
    one, two = (run_of("torch", [rank], []) for rank in ranks[:2])
    both = run_of("torch", same_loaders(ranks, "train.py:3", "Photos"), [])
    assert both.samples == 64 and both.rate == pytest.approx(one.rate + two.rate)
    assert both.share == pytest.approx((one.share + two.share) / 2) and both.first == 1.0
    assert one.steady_rate == pytest.approx(8 / 0.2)


def test_figures_are_plain_values() -> None:
    plain = figures_as_dict(compared([run("torch", 100), run("stoker", 150)]))
    assert plain["samples/s"]["ratio"] == {"median": 1.5, "least": 1.5, "most": 1.5}
