"""Files whose footer promises other rows, and values that Python cannot hold: errors that name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.errors import ParquetFileError, ParquetValueError, StokerWarning
from stoker.loader.dataloader import DataLoader
from stoker.sources.parquet.dataset import ParquetDataset
from stoker.sources.parquet.stream import ParquetStream
from tests.sources.parquet.tables import arrow, parquet, write, write_numbered


def promise(path: str, rows: int, promised: int) -> None:
    """Changes the number of rows of the first row group in the footer."""
    data = Path(path).read_bytes()
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for place in range(begin, len(data) - 8):
        if data[place] == 2 * rows:  # a number of Thrift's
            Path(path).write_bytes(data[:place] + bytes([2 * promised]) + data[place + 1 :])
            try:
                footer = parquet.ParquetFile(path).metadata
                found = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
            except OSError:
                continue
            if found[0] == promised:
                return
    raise AssertionError("the footer has no such number")


def test_footer_that_promises_more_rows_is_an_error(tmp_path: Path) -> None:
    (path,) = write_numbered(tmp_path, [8], group=5)
    promise(path, 5, 7)
    message = r"row group 0 cannot be read: it has 5 rows, and the footer promises 7"
    dataset = ParquetDataset(path)
    with pytest.raises(ParquetFileError, match=message):
        list(dataset)  # type: ignore[call-overload]  # by index, up to an IndexError
    with pytest.raises(ParquetFileError, match=message):
        ParquetDataset(path, decoded_cache=tmp_path / "cache")[0]
    with pytest.raises(ParquetFileError, match=message):
        list(ParquetStream(path))
    with (
        pytest.warns(StokerWarning, match=message),
        DataLoader(ParquetStream(path), batch_size=None, on_error="skip") as loader,
    ):
        assert [sample["number"] for sample in loader] == [5, 6, 7]


@pytest.mark.parametrize("values", ["days", "microseconds", "seconds", "texts", "texts in lists"])
def test_value_that_python_cannot_hold_is_an_error_of_its_row(values: str, tmp_path: Path) -> None:
    texts = arrow.array([b"a", b"\xff\xfe", b"c"]).view(arrow.string())
    column: Any = {
        "days": arrow.array([1, 10**7, 3], arrow.int32()).view(arrow.date32()),
        "microseconds": arrow.array([1, 9 * 10**17, 3]).view(arrow.timestamp("us")),
        "seconds": arrow.array([1, 9 * 10**17, 3]).view(arrow.duration("s")),
        "texts": texts,
        "texts in lists": arrow.ListArray.from_arrays(arrow.array([0, 1, 2, 3], arrow.int32()), texts),
    }[values]
    table = arrow.table({"x": range(3), "odd": column})
    paths = [write(tmp_path / "a.parquet", table.slice(0, 0)), write(tmp_path / "b.parquet", table, group=1)]
    dataset = ParquetDataset(paths)
    for error in (ParquetFileError, ValueError, OverflowError):
        with pytest.raises(error, match=r"'odd' in row 1 of .*b\.parquet cannot be read: .* columns="):
            dataset[1]
    assert [dataset[index]["x"] for index in (0, 2)] == [0, 2] and dataset[2]["odd"] is not None
    assert ParquetDataset(paths, columns=["x"])[1] == {"x": 1}
    for source in (dataset, ParquetStream(paths)):
        with pytest.raises(ParquetValueError, match=r"'odd' in row 1 of .*b\.parquet"):
            list(source)
    with (
        pytest.warns(StokerWarning, match=r"row 1 of .*b\.parquet"),
        DataLoader(ParquetStream(paths), batch_size=None, on_error="skip") as loader,
    ):
        assert [sample["x"] for sample in loader] == [0, 2]


def test_name_that_is_no_utf_8_is_an_error_of_the_file(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "a.parquet", arrow.table({"names": [1, 2]})))
    path.write_bytes(path.read_bytes().replace(b"names", b"n\xffmes"))
    with pytest.raises(ParquetFileError, match=r"a\.parquet .* its footer cannot be read: .* byte 0xff"):
        ParquetDataset(path)
