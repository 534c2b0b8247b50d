"""Rows of Ray Data datasets. Runs where `ray[data]` is installed."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.errors import ShardingError

pytest.importorskip("ray")
pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
pytest.importorskip("torch")
pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.slow,
    pytest.mark.leaves_behind("the cluster of this module"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]

ROWS = 60


@pytest.fixture(scope="module")
def data() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray.data

        ray.init(num_cpus=2, object_store_memory=80 << 20, include_dashboard=False, log_to_driver=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield ray.data
        ray.shutdown()


def lazy(data: Any) -> Any:
    def columns(batch: Any) -> Any:
        ids = batch["id"]
        return {"id": ids, "x": ids[:, None] * np.ones((1, 3), np.float32), "word": np.array([f"w{i}" for i in ids])}

    return data.range(ROWS, override_num_blocks=7).map_batches(columns)


@pytest.fixture(scope="module")
def made(data: Any) -> Any:
    return lazy(data).materialize()


def plain(batch: Any) -> Any:
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in batch.items()}


def batches(dataset: Any, workers: int = 0, **arguments: Any) -> list[Any]:
    with stoker.DataLoader(dataset, 8, num_workers=workers, **arguments) as loader:
        return [plain(batch) for batch in loader]


def test_batches_are_those_of_iter_torch_batches(made: Any) -> None:
    theirs = [
        {"id": plain(each)["id"], "x": plain(each)["x"]} for each in numbers(made).iter_torch_batches(batch_size=8)
    ]
    assert batches(stoker.from_ray_dataset(numbers(made))) == theirs


def numbers(made: Any) -> Any:
    return made.select_columns(["id", "x"]).materialize()


def test_rows_by_index_have_length_and_own_memory(made: Any) -> None:
    rows: Any = stoker.from_ray_dataset(made)
    place = next(index for index in range(len(rows)) if rows[index]["id"] == 3)
    rows[place]["x"] += 1
    assert rows[place]["x"].tolist() == [3, 3, 3] and rows[place - ROWS]["word"] == "w3"


def test_rows_of_a_part_of_the_blocks(made: Any) -> None:
    part = made.limit(13).materialize()
    rows: Any = stoker.from_ray_dataset(part)
    assert [rows[index]["id"] for index in range(len(rows))] == [row["id"] for row in part.iter_rows()]
    assert len(rows) == 13


def test_workers_read_materialized_blocks(made: Any) -> None:
    alone = batches(stoker.from_ray_dataset(made), shuffle=True, seed=3)
    assert batches(stoker.from_ray_dataset(made), 2, shuffle=True, seed=3) == alone
    assert sorted(index for batch in alone for index in batch["id"]) == [*range(ROWS)]
    with pytest.raises(RuntimeError, match="a forked worker reads a dataset of Ray"):
        batches(stoker.from_ray_dataset(made), 1, multiprocessing_context="fork")


def test_stream_executes_each_epoch_in_order_and_resumes(data: Any) -> None:
    rows = stoker.from_ray_dataset(lazy(data))
    with stoker.DataLoader(rows, 8) as loader:
        iterator = iter(loader)
        seen = [plain(next(iterator)) for _ in range(3)]
        state = json.loads(json.dumps(loader.state_dict()))
        rest = [plain(batch) for batch in iterator]
        assert [index for batch in seen + rest for index in batch["id"]] == [*range(ROWS)]
    with stoker.DataLoader(rows, 8) as loader:
        loader.load_state_dict(state)
        assert [plain(batch) for batch in loader] == rest


def test_one_worker_may_execute_a_stream_and_two_may_not(data: Any) -> None:
    rows = stoker.from_ray_dataset(lazy(data))
    assert batches(rows, 1) == batches(rows)
    with pytest.raises(ShardingError, match=r"2 workers read .* ds\.materialize"):
        batches(rows, 2)


def test_shards_of_ranks_are_streams(data: Any) -> None:
    (shard,) = lazy(data).streaming_split(1)
    rows = stoker.from_ray_dataset(shard)
    for _ in range(2):  # epochs
        assert sorted(index for batch in batches(rows) for index in batch["id"]) == [*range(ROWS)]


def test_other_things_are_refused() -> None:
    with pytest.raises(TypeError, match="but got a list"):
        stoker.from_ray_dataset([1])
