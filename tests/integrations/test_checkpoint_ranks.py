"""States of two and three ranks that differ, by torch.distributed.checkpoint, torch.save and JSON: none is mixed."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)

from tests.integrations.checkpoint_ranks import LENGTHS, SAMPLES  # noqa: E402
from tests.integrations.launching import launched  # noqa: E402

WAYS = ("dcp", "torch.save", "json")
EVERY = sorted(100 * shard + place for shard, length in enumerate(LENGTHS) for place in range(length))


def numbers(samples: list[Any]) -> list[int]:
    return [sample[0] if isinstance(sample, list) else sample for sample in samples]


@pytest.mark.timeout(240)
def test_each_rank_resumes_from_its_own_state(tmp_path: Path) -> None:
    two = launched("checkpoint_ranks.py", 2, str(tmp_path), "0")
    three = launched("checkpoint_ranks.py", 3, str(tmp_path), "2")
    for ranks in (two, three):
        for told, name, way in itertools.product(ranks, ("stream", "stream with a seed", "sampler"), WAYS):
            assert told[name]["before"] + told[name][way] == told[name]["whole"], (len(ranks), name, way)
        for name in ("stream", "stream with a seed"):
            whole = [sample for told in ranks for sample in numbers(told[name]["whole"])]
            assert sorted(whole) == EVERY
            assert "that of rank 0 of" in ranks[1][name]["of rank 0"]
        for told in ranks:  # a sampler's place is the same on all ranks, and each has its own seed
            assert told["sampler"]["of rank 0"] == told["sampler"]["json"]
        draws = [draw for told in ranks for _, draw in told["sampler"]["whole"]]
        assert len(set(draws)) == len(draws) >= SAMPLES

        # one rank has ended its epoch: whichever state was written, all ranks have loaded it whole
        uneven = [told["uneven"] for told in ranks]
        assert [told["state"] for told in uneven] == [[0, 2, len(ranks) + 1], *[[1, 0, 0]] * (len(ranks) - 1)]
        assert uneven[0]["loaded"] in (uneven[0]["state"], uneven[1]["state"])
        assert all(told["loaded"] == uneven[0]["loaded"] for told in uneven)

        # the last rank begins last, and is told once for each loader that differs
        assert [told["differing"] for told in ranks[:-1]] == [[[]] * 5] * (len(ranks) - 1)
        alike, (seed,), (length,), unset, forked = ranks[-1]["differing"]
        assert alike == unset == forked == []
        assert f"rank {len(ranks) - 1} differ: seed is 1 there and 2 here. Ranks that share" in seed
        assert "samples is 12 there and 6 here; the number of the sampler's indices is 12 there and 6 here" in length

    for name in ("stream", "stream with a seed"):
        before = [sample for told in two for sample in told[name]["before"]]
        merged = [sample for told in three for sample in told[name]["merged"]]
        assert sorted(numbers(before + merged)) == EVERY
        assert "got those of 1 of 2" in three[0][name]["one is missing"]
