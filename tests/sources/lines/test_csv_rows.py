from __future__ import annotations

import csv
import gzip
import io
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.errors import (
    MissingColumnError,
    RecordError,
    SchemaMismatchError,
    StokerWarning,
)
from stoker.loader.dataloader import DataLoader
from stoker.sources.lines import parsing, streaming
from stoker.sources.lines.by_index import IndexedRecords
from stoker.sources.lines.csv_rows import CSVDataset, CSVStream
from stoker.sources.lines.opened_text import Cutting
from stoker.sources.lines.parsing import FieldParser
from stoker.sources.storage_of import source_files
from stoker.testing.datasets import DatasetSuite
from stoker.testing.streams import StreamSuite, through_json

CONTENT = b'\xef\xbb\xbfid,name,score\r\n1,"a, b",0.5\r\n\r\n2,"two\r\nlines",1\r\n3,"say ""so""",-1e3\r\n4,,2'
ROWS = [
    {"id": 1, "name": "a, b", "score": 0.5},
    {"id": 2, "name": "two\r\nlines", "score": 1.0},
    {"id": 3, "name": 'say "so"', "score": -1000.0},
    {"id": 4, "name": "", "score": 2.0},
]
TYPES = {"id": int, "score": float}


def of(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def both(path: Any, **options: Any) -> list[Any]:
    """The rows of the dataset, which are those of the stream."""
    dataset = CSVDataset(path, **options)
    rows = [dataset[index] for index in range(len(dataset))]
    assert list(CSVStream(path, **options)) == rows
    return rows


class TestResume(StreamSuite):
    @pytest.fixture(params=["plain", "with a transform"])
    def make(self, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
        files = [of(tmp_path / f"{number}.csv", CONTENT) for number in range(3)]
        return lambda: CSVStream(files, types=TYPES, transform=None if request.param == "plain" else dict.items)


class TestInWorkers(DatasetSuite):
    births = ("fork",)

    @pytest.fixture
    def make(self, tmp_path: Path) -> Any:
        for number in range(3):
            (tmp_path / f"{number}.csv.gz").write_bytes(gzip.compress(CONTENT))
        return lambda: CSVStream(tmp_path / "*.csv.gz", types=TYPES, columns=["id", "name"])

    def delete(self, dataset: CSVStream) -> str:
        for path in dataset.files:
            os.unlink(path)
        return os.path.dirname(dataset.files[0])


def test_rows_are_dicts_by_column(tmp_path: Path) -> None:
    files = [of(tmp_path / "1.csv", CONTENT), of(tmp_path / "2.csv", CONTENT)]
    assert both(files, types=TYPES) == ROWS * 2
    assert both(files, types=TYPES, columns=["score", "id"])[1] == {"score": 1.0, "id": 2}
    dataset = CSVDataset(files)
    assert dataset.columns == ["id", "name", "score"]
    assert dataset[0] == {"id": "1", "name": "a, b", "score": "0.5"}, "types are never guessed"
    assert dataset.describe(2) == f"sample 2: line 6 of {files[0]}, byte 52"


def test_values_have_the_types_that_are_given(tmp_path: Path) -> None:
    path = of(tmp_path / "a.csv", b"i,f,b,s\n 7 ,nan,TRUE,x\n1_0,1,0,x\n,1,no,x\n3,2,maybe,x\n")
    types = {"i": int, "f": float, "b": bool, "s": str.upper}
    dataset = CSVDataset(path, types=types)
    row = dataset[0]
    assert (row["i"], row["b"], row["s"]) == (7, True, "X") and row["f"] != row["f"]
    for index, match in [
        (1, r"line 3 of .*a\.csv, byte 23: column 'i' is '1_0', which its type refuses: it is no number"),
        (2, "column 'i' is '', which its type refuses: the field is empty"),
        (3, "column 'b' is 'maybe', .*: expected true, false"),
    ]:
        with pytest.raises(RecordError, match=match):
            dataset[index]
    numbers = of(tmp_path / "b.csv", b"1,2\n3,4\n")
    assert both(numbers, names=["a", "b"], types=int) == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    with pytest.raises(MissingColumnError, match="types names a column 'z'"):
        CSVDataset(numbers, names=["a", "b"], types={"z": int})
    with pytest.raises(TypeError, match="the type of column 'a' is a str"):
        CSVDataset(numbers, names=["a", "b"], types={"a": "int"})  # type: ignore[dict-item]


def test_other_dialects(tmp_path: Path) -> None:
    path = of(tmp_path / "a.tsv", b"a\tb\n'x\ty'\t5\" disk\n")
    assert both(path, delimiter="\t", quote="'") == [{"a": "x\ty", "b": '5" disk'}]
    path = of(tmp_path / "b.csv", b'a,b\n"x,y\n')
    assert both(path, quote=None) == [{"a": '"x', "b": "y"}]
    path = of(tmp_path / "c.csv", "größe;zahl\nä;1\n".encode("cp1252"))
    assert both(path, encoding="cp1252", delimiter=";") == [{"größe": "ä", "zahl": "1"}]
    for options, match in [
        ({"delimiter": ",,"}, "delimiter is ',,', expected one ASCII character"),
        ({"quote": "\n"}, "quote is '\\\\n', expected one ASCII"),
        ({"quote": ","}, "delimiter and quote are both ','"),
        ({"encoding": "iso2022_jp"}, "cannot be cut at bytes of quote"),
        ({"encoding": "utf-16"}, "cannot be cut at bytes of value 10"),
    ]:
        with pytest.raises(ValueError, match=match):
            CSVStream(path, **options)


def test_headers_are_checked(tmp_path: Path) -> None:
    for kind in (CSVDataset, CSVStream):
        path = of(tmp_path / "a.csv", b"a,b,a\n1,2,3\n")
        with pytest.raises(RecordError, match=r"the header of .*a\.csv names the column 'a' twice: \['a', 'b', 'a'\]"):
            kind(path)
        with pytest.raises(RecordError, match=r"empty\.csv has no header: it is empty"):
            kind(of(tmp_path / "empty.csv", b"\n\n"))
        with pytest.raises(RecordError, match=r"first row of .*a\.csv holds the names themselves"):
            kind(of(tmp_path / "a.csv", b"a,b\n1,2\n"), names=["a", "b"])
        with pytest.raises(
            RecordError,
            match=r"open\.csv should name the columns: .*a quote is opened",
        ):
            kind(of(tmp_path / "open.csv", b'a,"b\n1,2\n'))
        with pytest.raises(SchemaMismatchError, match=r"c\.csv has the columns \['a', 'c'\], but .*a\.csv has"):
            kind([path, of(tmp_path / "c.csv", b"a,c\n1,2\n")])
        with pytest.raises(MissingColumnError, match="columns names a column 'x', which there is not: there are"):
            kind(path, columns=["x"])
        with pytest.raises(TypeError, match="names is a text"):
            kind(path, names="ab")
        with pytest.raises(RecordError, match="names names the column 'a' twice"):
            kind(path, names=["a", "a"])
    with pytest.raises(ValueError, match="there is no record in 1 files"):
        CSVDataset(of(tmp_path / "d.csv", b"a,b\n"))
    assert list(CSVStream(tmp_path / "d.csv")) == []


def test_a_name_twice_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b,a\n1,2,3\n")
    for read in (CSVDataset, CSVStream):
        assert next(iter(read(path, columns=["b"]))) == {"b": "2"}
        for columns in (None, ["a"], ["b", "a"]):
            with pytest.raises(RecordError, match=r"names the column 'a' twice: .*leave such .* out by columns="):
                read(path, columns=columns)


def test_a_header_of_one_column_names_the_delimiter(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for character in (";", "\t"):
        path.write_text(f"a{character}b\n1{character}2\n")
        for read in (CSVDataset, CSVStream):
            with pytest.warns(
                StokerWarning, match=rf"one column, .*pass delimiter={re.escape(repr(character))}"
            ) as warned:
                read([path, path])
            assert len(warned) == 1 and warned[0].filename == __file__
            assert next(iter(read(path, delimiter=character))) == {"a": "1", "b": "2"}
    path.write_text("a;b,c\n1,2\n")
    assert CSVDataset(path)[0] == {"a;b": "1", "c": "2"}


def test_bad_rows_are_named_and_the_next_follows(tmp_path: Path) -> None:
    path = of(tmp_path / "a.csv", b'a,b\n1,2\n"x\ny",2,3\n4\n5,6\n\xff,8\n9,"open\n10,11\n')
    dataset = CSVDataset(path)
    expected = [
        (1, RecordError, r"line 3 of .*a\.csv, byte 8: a row of 3 fields, expected 2. It is \['x\\ny', '2', '3'\]"),
        (2, RecordError, r"line 5 of .*a\.csv, byte 18: a row of 1 fields, expected 2"),
        (4, UnicodeDecodeError, r"\(line 7 of .*a\.csv"),
        (5, RecordError, r"line 8 of .*a\.csv, byte 28: a quote is opened and not closed in 14 bytes"),
    ]
    assert len(dataset) == 6
    for index, error, match in expected:
        with pytest.raises(error, match=match):
            dataset[index]
    stream = CSVStream(path)
    rows, found = iter(stream), []
    for _ in range(6):
        try:
            found.append(next(rows)["a"])
        except ValueError as error:
            place = next(which for which, kind, match in expected if isinstance(error, kind) and which >= len(found))
            found.append(type(error).__name__)
            assert place
    assert found == ["1", "RecordError", "RecordError", "5", "UnicodeDecodeError", "RecordError"]
    assert next(rows, None) is None
    loader = DataLoader(CSVStream(path), batch_size=10, num_workers=1, on_error="skip", collate_fn=list)
    with pytest.warns(StokerWarning, match=r"line 3 of"):
        assert list(loader) == [[{"a": "1", "b": "2"}, {"a": "5", "b": "6"}]]


def test_a_bad_first_row_without_header_goes_to_its_sample(tmp_path: Path) -> None:
    path = of(tmp_path / "a.csv", b"\xff,1\n2,3\n")
    dataset = CSVDataset(path, names=["a", "b"])
    with pytest.raises(UnicodeDecodeError, match="line 1 of"):
        dataset[0]
    assert dataset[1] == {"a": "2", "b": "3"}
    with pytest.raises(RecordError, match=r"a\.csv should name the columns: .*codec can't decode"):
        CSVDataset(path)


def test_a_state_behind_a_bad_row_goes_on_with_the_next(tmp_path: Path) -> None:
    path = of(tmp_path / "a.csv", b"a,b\n1\n3,4\n")
    stream = CSVStream(path)
    with pytest.raises(RecordError):
        next(iter(stream))
    other = CSVStream(path)
    other.load_state_dict(through_json(stream.state_dict()))
    assert list(other) == [{"a": "3", "b": "4"}]


def test_a_quote_that_is_not_closed_takes_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (parsing, streaming):
        monkeypatch.setattr(module, "MOST_RECORD", 20)
    path = of(tmp_path / "a.csv", b'a,b\n1,2\n3,"' + b"4,5\n" * 100)
    dataset = CSVDataset(path)
    assert len(dataset) == 2
    with pytest.raises(RecordError, match=r"line 3 of .*byte 8: a quote is opened and not closed in 403 bytes"):
        dataset[1]
    rows = iter(CSVStream(path))
    assert next(rows) == {"a": "1", "b": "2"}
    with pytest.raises(RecordError, match=r"line 3 of .*byte 8: a quote is opened and not closed in 403 bytes"):
        next(rows)
    assert next(rows, None) is None


def test_fields_of_any_length(tmp_path: Path) -> None:
    long = "x" * (csv.field_size_limit() + 1)
    path = of(tmp_path / "a.csv", f'a,b\n{long},"{long}\n""{long}"\n1,2\n'.encode())
    assert both(path) == [{"a": long, "b": f'{long}\n"{long}'}, {"a": "1", "b": "2"}]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)
@given(st.text(alphabet='ab,"\n', max_size=40), st.sampled_from([',"', "-^", "]'", "|\\", " ]"]))
def test_rows_are_those_of_the_csv_module(tmp_path: Path, text: str, dialect: str) -> None:
    """Also of files with quotes in places where they should not be."""
    delimiter, quote = dialect
    text = text.translate({ord(","): delimiter, ord('"'): quote})
    path = of(tmp_path / "a.csv", text.encode())
    cutting = Cutting(True, delimiter.encode(), quote.encode())
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quotechar=quote)
    expected = [row for row in rows if row]
    records: list[list[str]] = []
    fields = FieldParser("utf-8", "strict", cutting)
    iterator = iter(streaming.UntransformedRecords(source_files([str(path)]), cutting, fields, "utf-8"))
    is_closed = True
    while True:
        try:
            records.append(next(iterator))
        except StopIteration:
            break
        except RecordError as error:
            assert "a quote is opened and not closed" in str(error)
            is_closed = False
    assert records == (expected if is_closed else expected[:-1])
    assert IndexedRecords(source_files([str(path)]), cutting, "utf-8", "CSVStream").counts == [len(expected)]


@pytest.mark.parametrize("text", ['"a"b"c,d', '"a""b",c', 'a"b"c,"d', ',,"",x', '"a"", ",b"c', '"x"'])
def test_loose_quotes_are_read_as_by_the_csv_module(text: str) -> None:
    fields = FieldParser("utf-8", "strict", Cutting(True, b",", b'"'))
    if not fields._cutting.is_open(text.encode()):
        assert fields._loosely(text) == fields(text.encode()) == next(csv.reader([text]))


def test_a_carriage_return_in_an_unquoted_field_is_an_error() -> None:
    with pytest.raises(RecordError, match="a carriage return within a field"):
        FieldParser("utf-8", "strict", Cutting(True, b",", b'"'))(b"a\rb,c\n")
