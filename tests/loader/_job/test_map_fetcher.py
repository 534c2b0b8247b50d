"""The samples of a unit, some of which other workers have made."""

from __future__ import annotations

from typing import Any

from stoker._engine.activity import NEW_MARK
from stoker.loader._job.error_policy import LEFT_OUT, ErrorPolicy
from stoker.loader._job.map_fetcher import MapFetcher
from stoker.loader._job.work import Work
from stoker.loader._random.sample_seeding import SampleSeeding


class Named:
    asked: list[int]

    def __init__(self) -> None:
        self.asked = []

    def __getitem__(self, index: int) -> str:
        self.asked.append(index)
        return f"sample {index}"


def test_each_sample_of_a_joined_unit_gets_its_row_as_it_comes() -> None:
    """So that a unit for which there is no memory does not hold all its samples."""
    dataset, mark = Named(), [*NEW_MARK]
    fetcher = MapFetcher(dataset, True, ErrorPolicy("raise", dataset, 0), mark)
    seeds = SampleSeeding("auto", dataset=dataset, mark=mark)
    rows: list[tuple[int, Any]] = []

    def keep(place: int, sample: Any) -> int:
        rows.append((place, sample))
        return place

    work = Work(run=1, seed=7, position=0, indices=[5, 6, 7, 8])
    assert fetcher.joined(work, seeds, {1: "made", 3: LEFT_OUT}, keep) == [0, 1, 2]
    assert rows == [(0, "sample 5"), (1, "made"), (2, "sample 7")]
    assert dataset.asked == [5, 7]
