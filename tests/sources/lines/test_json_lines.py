from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import RecordError, StokerWarning
from stoker.loader.dataloader import DataLoader
from stoker.sources.lines.json_lines import JSONLinesDataset, JSONLinesStream
from stoker.testing.streams import StreamSuite

CONTENT = b'\xef\xbb\xbf{"a": 1, "b": [1, 2.5, null]}\r\n\r\n{"b": "\xc3\xa9\\n", "a": true}\n\n3'
VALUES = [{"a": 1, "b": [1, 2.5, None]}, {"b": "é\n", "a": True}, 3]


class TestResume(StreamSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Any:
        (tmp_path / "1.jsonl").write_bytes(CONTENT)
        (tmp_path / "2.jsonl").write_bytes(b"\n\n")
        (tmp_path / "3.jsonl").write_bytes(gzip.compress(CONTENT))
        return lambda: JSONLinesStream(tmp_path / "*.jsonl")


def test_a_line_is_a_value(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(CONTENT)
    dataset = JSONLinesDataset(path)
    assert [dataset[index] for index in range(len(dataset))] == list(JSONLinesStream(path)) == VALUES
    assert dataset.describe(2) == f"sample 2: line 5 of {path}, byte {len(CONTENT) - 1}"
    assert list(JSONLinesStream(path, transform=type)) == [dict, dict, int]


def test_blank_lines_are_no_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\n  \n{"a": 1}\n\t \r\n\n {"a": 2}\n \n' + b'{"a": 3}\n   \n' * 2000 + b" \t")
    expected = [json.loads(line) for line in path.read_text().split("\n") if line.strip()]
    monkeypatch.setattr("stoker.sources.lines.by_index._BLOCK", 1000)
    for _ in range(2):  # with a new index, and with the one beside the file
        dataset = JSONLinesDataset(path)
        assert len(dataset) == len(expected) == 2002
        assert [dataset[index] for index in range(2002)] == expected
    assert list(JSONLinesStream(path)) == expected
    assert dataset.describe(1) == f"sample 1: line 6 of {path}, byte 18"


ARRAYS: dict[str, bytes] = {
    "a.json": b'[{"a": 1}, {"a": 2}]',
    "b.json": b'[{"a": 1}, {"a": 2}]\n',
    "c.jsonl": b'[\n {"a": 1},\n {"a": 2}\n]\n',
    "d.json": b'\xef\xbb\xbf{\n "a": 1\n}\n',
}


@pytest.mark.parametrize("name", ARRAYS)
def test_a_file_that_is_one_value_names_the_way_out(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(ARRAYS[name])
    said = rf"{name} is one JSON (array|value over several lines): .*json\.load and pass the list .*jq -c"
    with pytest.raises(RecordError, match=said):
        JSONLinesDataset(path)
    (tmp_path / "z.jsonl").write_bytes(b"1\n")
    iterator = iter(JSONLinesStream([path, tmp_path / "z.jsonl"]))
    with pytest.raises(RecordError, match=said):
        next(iterator)
    assert list(iterator) == [1], "the next file follows"


def test_arrays_may_be_values(tmp_path: Path) -> None:
    for name, content in (("a.jsonl", b"[1, 2]\n"), ("a.json", b"[1, 2]\n[3]\n")):
        (tmp_path / name).write_bytes(content)
        expected = [json.loads(line) for line in content.splitlines()]
        dataset = JSONLinesDataset(tmp_path / name)
        assert [dataset[index] for index in range(len(dataset))] == expected == list(JSONLinesStream(tmp_path / name))
    (tmp_path / "b.json").write_bytes(b'[{"a": 1},\n{"a": 2}]')
    with pytest.raises(RecordError, match=r"line 1 of .*b\.json.*If the file is one JSON value, .*json\.load"):
        JSONLinesDataset(tmp_path / "b.json")[0]


def test_columns_are_keys_of_the_objects(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(CONTENT + b'\n{"b": 2, "c": 1}\n')
    dataset = JSONLinesDataset(path, columns=["b", "a"])
    assert list(dataset[0].items()) == [("b", [1, 2.5, None]), ("a", 1)]
    with pytest.raises(RecordError, match=r"line 5 of .*: a JSON int, expected an object with b, a"):
        dataset[2]
    with pytest.raises(RecordError, match=r"line 6 of .*: an object without 'a'; its keys are b, c"):
        dataset[3]
    for columns, error in [("a", TypeError), ([], ValueError)]:
        with pytest.raises(error, match="columns is"):
            JSONLinesStream(path, columns=columns)


def test_a_bad_line_is_named_and_the_next_follows(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 1\n' + b"[" * 100_000 + b"\n nul \n{}\n")
    values = iter(JSONLinesStream(path))
    assert next(values) == {"a": 1}
    for match in (
        r"line 2 of .*a\.jsonl, byte 9: no JSON value: Expecting .*It is \{\"a\": 1",
        "line 3 of .*, byte 17: no JSON value: maximum recursion depth",
        "line 4 of .*: no JSON value",
    ):
        with pytest.raises(RecordError, match=match):
            next(values)
    assert list(values) == [{}]


def test_bad_lines_of_a_stream_go_to_the_error_policy(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}.jsonl").write_text(f"{number}\nbad\n{number}\n")
    stream = JSONLinesStream(tmp_path / "*.jsonl")
    loader = DataLoader(stream, batch_size=4, num_workers=2, on_error="skip", collate_fn=list)
    with pytest.warns(StokerWarning, match=r"line 2 of .*\.jsonl, byte 2: no JSON value"):
        assert sorted(value for batch in loader for value in batch) == [0, 0, 1, 1]
