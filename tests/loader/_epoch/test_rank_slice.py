from __future__ import annotations

import math
import tracemalloc
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.loader._epoch.ranks import Mode, RankSlice, World

SIZES = st.integers(0, 200)
WORLDS = st.integers(1, 20)
MODES = st.sampled_from(get_args(Mode))
BATCH_SIZES = st.integers(1, 9)


def shares(n: int, begin: int, size: int, mode: Mode) -> list[RankSlice]:
    return [RankSlice(n, begin, World(rank, size), mode) for rank in range(size)]


def whole(share: RankSlice) -> list[int]:
    return share.positions(0, len(share)).tolist()


def interleaved(parts: list[list[int]]) -> list[int]:
    """First the first of each rank, then the second of each, …"""
    longest = max(map(len, parts))
    return [part[j] for j in range(longest) for part in parts if j < len(part)]


@given(n=SIZES, begin=SIZES, size=WORLDS)
def test_exact_is_every_position_once(n: int, begin: int, size: int) -> None:
    begin = min(begin, n)
    parts = [whole(share) for share in shares(n, begin, size, "exact")]
    assert interleaved(parts) == list(range(begin, n))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert list(map(len, parts)) == sorted(map(len, parts), reverse=True)


@given(n=SIZES, begin=SIZES, size=WORLDS)
def test_drop_leaves_out_less_than_one_for_each_rank(n: int, begin: int, size: int) -> None:
    begin = min(begin, n)
    parts = [whole(share) for share in shares(n, begin, size, "drop")]
    seen = interleaved(parts)
    assert seen == list(range(begin, begin + len(seen)))
    assert n - begin - len(seen) < size
    assert len(set(map(len, parts))) == 1


@given(n=SIZES, begin=SIZES, size=WORLDS)
def test_pad_repeats_the_epoch_from_its_first(n: int, begin: int, size: int) -> None:
    begin = min(begin, n)
    parts = [whole(share) for share in shares(n, begin, size, "pad")]
    seen = interleaved(parts)
    assert seen == [position % n for position in range(begin, begin + len(seen))]
    assert len(set(map(len, parts))) == 1
    assert 0 <= len(seen) - (n - begin) < size


@given(n=SIZES, begin=SIZES, size=WORLDS, mode=MODES, data=st.data())
def test_any_piece_of_a_share_is_known_at_once(n: int, begin: int, size: int, mode: Mode, data: Any) -> None:
    share = RankSlice(n, min(begin, n), World(data.draw(st.integers(0, size - 1)), size), mode)
    start = data.draw(st.integers(0, len(share)))
    stop = data.draw(st.integers(start, len(share)))
    piece = share.positions(start, stop)
    assert piece.dtype == np.int64
    assert piece.tolist() == whole(share)[start:stop]


@given(n=st.integers(1, 200), size=WORLDS, drop_last=st.booleans())
def test_rank_slices_equal_torchs_distributed_sampler(n: int, size: int, drop_last: bool) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    for rank, share in enumerate(shares(n, 0, size, "drop" if drop_last else "pad")):
        theirs = torch_data.DistributedSampler(range(n), size, rank, shuffle=False, drop_last=drop_last)
        assert whole(share) == list(theirs)
        assert len(share) == len(theirs)


def batches(share: RankSlice, batch_size: int, count: int) -> list[int]:
    return share.positions(0, min(len(share), count * batch_size)).tolist()


@given(
    n=SIZES,
    mode=MODES,
    legs=st.lists(st.tuples(WORLDS, BATCH_SIZES, st.integers(0, 4)), min_size=1, max_size=5),
    last=WORLDS,
)
def test_an_epoch_that_changes_its_ranks(n: int, mode: Mode, legs: list[tuple[int, int, int]], last: int) -> None:
    """Ranks and batch size change after some batches, several times: what comes is one run of positions."""
    begin, seen = 0, []
    for size, batch_size, count in legs:
        ranks = shares(n, begin, size, mode)
        before, seen = seen, seen + interleaved([batches(share, batch_size, count) for share in ranks])
        reached = {share.global_position(count, batch_size) for share in ranks}
        assert len(reached) == 1
        begin = reached.pop()
        if count * batch_size < min(map(len, ranks)):
            assert begin == len(seen) == len(before) + count * batch_size * size
    seen += interleaved([whole(share) for share in shares(n, begin, last, mode)])
    assert seen[:n] == list(range(len(seen[:n])))
    if mode == "exact":
        assert len(seen) == n
    elif mode == "drop":
        assert n - max([last, *(size for size, _, _ in legs)]) < len(seen) <= n
    else:
        assert n <= len(seen) < n + max([last, *(size for size, _, _ in legs)])


@given(n=SIZES, size=WORLDS, mode=MODES, batch_size=BATCH_SIZES)
def test_a_share_that_is_delivered_leaves_nothing(n: int, size: int, mode: Mode, batch_size: int) -> None:
    every = shares(n, 0, size, mode)
    count = max(math.ceil(len(share) / batch_size) for share in every)
    assert {share.global_position(count, batch_size) for share in every} == {n}
    assert not any(map(len, shares(n, n, size, mode)))


@given(n=SIZES, mode=MODES, sizes=st.sampled_from([(1, 12), (2, 6), (3, 4), (4, 3), (6, 2)]), count=st.integers(0, 9))
def test_global_batches_do_not_depend_on_the_rank_count(n: int, mode: Mode, sizes: tuple[int, int], count: int) -> None:
    """With as many samples over all ranks, step k of any number of ranks holds the same samples."""
    size, batch_size = sizes
    start, stop = count * batch_size, (count + 1) * batch_size
    together = [
        position
        for share in shares(n, 0, size, mode)
        for position in share.positions(min(start, len(share)), min(stop, len(share))).tolist()
    ]
    if (count + 1) * 12 <= n:
        assert sorted(together) == list(range(count * 12, (count + 1) * 12))


@given(n=SIZES, size=WORLDS, batch_size=BATCH_SIZES, count=st.integers(0, 9))
def test_padding_is_the_same_after_an_interruption(n: int, size: int, batch_size: int, count: int) -> None:
    for share in shares(n, 0, size, "pad"):
        resumed = RankSlice(n, share.global_position(count, batch_size), share.world, "pad")
        assert batches(share, batch_size, count) + whole(resumed) == whole(share)


@pytest.mark.parametrize("mode", get_args(Mode))
def test_ten_thousand_ranks_share_ten_thousand_million(mode: Mode) -> None:
    n, size, begin = 10**10 + 4321, 10**4, 12_345
    left = n - begin
    every = shares(n, begin, size, mode)
    assert (
        sum(map(len, every)) == {"pad": math.ceil(left / size) * size, "drop": left // size * size, "exact": left}[mode]
    )
    for rank, share in enumerate(every):
        middle = len(share) // 2 + rank
        at = begin + rank + size * middle
        assert share.positions(middle, middle + 3).tolist() == [at, at + size, at + 2 * size]


@pytest.mark.parametrize("mode", get_args(Mode))
def test_memory_does_not_grow_with_the_epoch(mode: Mode) -> None:
    tracemalloc.start()
    share = RankSlice(10**10 + 4321, 0, World(7, 10**4), mode)
    share.positions(len(share) - 64, len(share))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000


def test_the_largest_epoch_does_not_overflow() -> None:
    n, world = 2**62, World(9_999, 10_000)
    whole_rounds = n - n % 10_000
    last = {"pad": whole_rounds + 9_999 - n, "drop": whole_rounds - 1, "exact": whole_rounds - 1}
    for mode in get_args(Mode):
        share = RankSlice(n, 0, world, mode)
        assert share.positions(len(share) - 1, len(share)) == [last[mode]]


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (2, 1), (0, 6), (6, 6)])
def test_positions_outside_of_the_share(start: int, stop: int) -> None:
    with pytest.raises(IndexError, match=f"positions {start} to {stop} of a share of 5"):
        RankSlice(10, 0, World(0, 2), "exact").positions(start, stop)


@pytest.mark.parametrize("begin", [-1, 11])
def test_a_begin_outside_of_the_epoch(begin: int) -> None:
    with pytest.raises(ValueError, match=f"begin is {begin}, which is not from 0 to the 10 positions"):
        RankSlice(10, begin, World(0, 2), "exact")


def test_an_unknown_mode() -> None:
    with pytest.raises(ValueError, match="mode is 'fair', expected one of 'pad', 'drop', 'exact'"):
        RankSlice(10, 0, World(0, 2), "fair")  # type: ignore[arg-type]
