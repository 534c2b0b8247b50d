"""A worker's shard of a stream: of ours as `shard` cuts it, of a user's as its declaration says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.datasets.combining import shard_of
from stoker.datasets.iterable import from_iterable
from stoker.datasets.map import FilterDataset
from stoker.datasets.worker_share import DeclaredShard, OfWorker, WorkerShare
from stoker.sources.lines.text_lines import TextLineStream
from stoker.testing.streams import Numbers
from tests.ownership import moved, named_like


def test_a_stream_of_ours_is_cut_by_its_own_shard(tmp_path: Path) -> None:
    stream = FilterDataset(Numbers(9), bool)
    assert type(shard_of(stream, 2, OfWorker(0))) is FilterDataset
    for name in "ab":
        (tmp_path / name).write_text("line\n")
    lines = TextLineStream(sorted(tmp_path.iterdir()))
    with moved(FilterDataset, TextLineStream):
        assert type(shard_of(stream, 2, OfWorker(0))) is FilterDataset
        assert type(shard_of(lines, 2, OfWorker(0))) is TextLineStream


@pytest.mark.parametrize(
    "kind",
    [
        type("Named", (FilterDataset,), {}),
        type("Own", (FilterDataset,), {"shard": lambda stream, num_shards, index: Numbers(3)}),
        named_like(FilterDataset),
        named_like(FilterDataset, shard=lambda stream, num_shards, index: Numbers(3)),
    ],
    ids=["inherits", "overrides", "spelled", "spelled and overrides"],
)
def test_a_users_subclass_is_asked_what_it_declares(kind: Any) -> None:
    stream = kind(Numbers(9), bool)
    assert type(shard_of(stream, 2, OfWorker(0))) is DeclaredShard
    assert type(shard_of(stream, 2, 0)) is not DeclaredShard  # of a rank
    stream.shards_itself = True
    assert shard_of(stream, 2, OfWorker(0)) is stream


def test_a_foreign_stream_may_share_itself_out() -> None:
    class Foreign:
        def __iter__(self) -> Any:
            return iter("ab")

        def shard(self, num_shards: int, index: int) -> Any:
            return from_iterable(str)

    data = pytest.importorskip("torch.utils.data")
    assert type(shard_of(type("Theirs", (Foreign, data.IterableDataset), {})(), 2, OfWorker(0))) is WorkerShare
    theirs = named_like(FilterDataset, Foreign, data.IterableDataset)
    assert type(shard_of(theirs(), 2, OfWorker(0))) is WorkerShare
