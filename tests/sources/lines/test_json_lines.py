from __future__ import annotations

import gzip
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
    path.write_bytes(b'{"a": 1}\n{"a": 1\n' + b"[" * 100_000 + b"\n   \n{}\n")
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
