from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import StokerWarning
from stoker.loader.dataloader import DataLoader
from stoker.sources.parquet.dataset import ParquetDataset
from stoker.sources.parquet.stream import ParquetStream
from stoker.sources.parquet.values import SampleOrigin, sample_origin
from tests.sources.parquet.tables import write_numbered


def with_origin(row: dict[str, Any]) -> Any:
    return row["number"], sample_origin()


def divide(row: dict[str, Any]) -> float:
    return 1 / (row["number"] - 9)


def end(row: dict[str, Any]) -> Any:
    raise StopIteration


def test_transform_has_the_file_and_the_row(tmp_path: Path) -> None:
    paths = write_numbered(tmp_path, [5, 0, 8])
    expected = [(row, SampleOrigin(paths[0], row)) for row in range(5)]
    expected += [(5 + row, SampleOrigin(paths[2], row)) for row in range(8)]
    dataset, stream = ParquetDataset(paths, transform=with_origin), ParquetStream(paths, transform=with_origin)
    assert [dataset[index] for index in range(13)] == expected == list(stream)
    for source in (dataset, stream):
        for settings in ({"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}):
            loader: Any = DataLoader(source, batch_size=2, collate_fn=list, **settings)
            assert sorted(sample for batch in loader for sample in batch) == expected
    assert sample_origin() is None


def test_error_of_a_transform_names_the_origin(tmp_path: Path) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    paths = write_numbered(tmp_path, [5, 8])
    dataset, stream = ParquetDataset(paths, transform=divide), ParquetStream(paths, transform=divide)
    said = f"raised by the transform of row 4 of {paths[1]}"
    for source in (dataset, stream):
        for make in (torch_data.DataLoader, DataLoader):
            for workers in (0, 1):
                with pytest.raises(ZeroDivisionError) as caught:
                    list(make(source, batch_size=None, num_workers=workers))
                assert said in "".join(traceback.format_exception(caught.value)), (make, workers)
    loader = DataLoader(stream, batch_size=None, on_error="skip")
    with pytest.warns(StokerWarning, match=re.escape(said)):
        assert len(list(loader)) == 12
    assert sample_origin() is None


def test_stop_of_a_transform_does_not_end_the_stream(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the transform of a ParquetStream raised StopIteration"):
        list(ParquetStream(write_numbered(tmp_path, [2]), transform=end))
