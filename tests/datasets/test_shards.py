from __future__ import annotations

import json
import random

import pytest

from stoker.datasets.shards import ShardProgress, share_of


@pytest.mark.parametrize("total", [1, 7, 8, 9, 64, 1000])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 3), (3, 1), (2, 5), (4, 4)])
def test_state_of_shards_is_shared_by_any_number_of_workers(total: int, before: int, after: int) -> None:
    draw = random.Random(total)
    fates = [draw.choice(["done", "begun", "waiting"]) for _ in range(total)]
    states = {}
    for index in range(min(before, total)):
        share = ShardProgress(share_of(range(total), min(before, total), index), total, None)
        for number in [number for number in share.waiting if fates[number] == "done"]:
            share.finish(number)
        begun = [(number, {"at": number}) for number in share.waiting if fates[number] == "begun"]
        states |= json.loads(json.dumps(share.state(begun)))["shards"]
    for index in range(min(after, total)):
        numbers = share_of(range(total), min(after, total), index)
        share = ShardProgress(numbers, total, {"shards": states})
        assert list(share.waiting) == [number for number in numbers if fates[number] == "waiting"]
        assert share.begun == {number: {"at": number} for number in numbers if fates[number] == "begun"}


def test_bits_beyond_the_last_shard_mean_nothing() -> None:
    share = {"of": 5, "round": 0, "done": "fffff1", "begun": []}
    assert list(ShardProgress(range(5), 5, {"shards": {"0/1": share}}).waiting) == [1, 2, 3]
    assert list(ShardProgress(range(1, 5, 2), 5, {"shards": {"0/1": share}}).waiting) == [1, 3]
