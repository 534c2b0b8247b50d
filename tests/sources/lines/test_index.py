from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stoker.errors import FileChangedError
from stoker.sources.lines import by_index as line_index
from stoker.sources.lines.by_index import STEP, LineIndex, index_of, place_of, scanned
from stoker.sources.lines.opened_text import Cutting
from stoker.sources.storage import LocalFile, LocalStorage, Version

RULES = [Cutting(), Cutting(True), Cutting(True, b",", b'"'), Cutting(True, b",")]


class Bytes:
    """A file in memory."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.version = Version(len(content), 1)

    def read(self, begin: int, length: int) -> bytes:
        return self.content[begin : begin + length]


def by_line(content: bytes, cutting: Cutting) -> tuple[list[int], list[int]]:
    """The places and lines of records, found one line after the other."""
    offsets, lines, begin, is_open = [], [], 0, False
    for number, line in enumerate(content.splitlines(keepends=True) if b"\r" not in content else cut(content)):
        if not is_open and not cutting.is_blank(line):
            offsets.append(begin)
            lines.append(number + 1)
        if cutting.quote:
            is_open = cutting.is_open(line, is_open)
        begin += len(line)
    return [*offsets, len(content)], lines


def cut(content: bytes) -> list[bytes]:
    parts = content.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


@example(b'a"b\nc"d\ne\n', RULES[2], 8)
@example(b'"a"b\n"c""\nd"\ne', RULES[2], 3)
@settings(max_examples=200, deadline=None)
@given(
    st.text(alphabet='a,"\n\r', max_size=60).map(str.encode), st.sampled_from(RULES), st.sampled_from([1, 3, 8, 100])
)
def test_records_are_found_in_blocks_as_line_by_line(content: bytes, cutting: Cutting, block: int) -> None:
    before = line_index._BLOCK
    line_index._BLOCK = block
    try:
        index = scanned(Bytes(content), cutting)
    finally:
        line_index._BLOCK = before
    offsets, lines = by_line(content, cutting)
    assert index.offsets.tolist() == offsets
    assert index.lines.tolist() == lines[::STEP]


def test_every_1024th_line_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_index, "_BLOCK", 1000)
    content = b"".join(b"%d\n" % number + b"\n" * (number % 3 == 0) for number in range(5000))
    index = scanned(Bytes(content), Cutting(True))
    assert len(index.offsets) == 5001
    assert index.lines.tolist() == by_line(content, Cutting(True))[1][::STEP]


def made(path: Path, cutting: Cutting = RULES[0]) -> LineIndex:
    return index_of(str(path), cutting, 0, LocalStorage())


def test_the_index_beside_the_file_is_used_while_it_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\nb\n")
    first = made(path)
    beside = Path(place_of(str(path), RULES[0]))
    assert beside.name == "a.txt.lines.index"
    with monkeypatch.context() as patch:
        patch.setattr(line_index, "scanned", None)  # would be called
        assert made(path).offsets.tolist() == first.offsets.tolist() == [0, 2, 4]
    os.utime(path, ns=(1, 1))
    path.write_bytes(b"longer\nb\nc\n")
    assert made(path).offsets.tolist() == [0, 7, 9, 11]
    assert sorted(tmp_path.iterdir()) == [path, beside], "no partial file is left"


def damaged(content: bytes) -> list[bytes]:
    head, _, columns = content.partition(b"\n")
    other = json.dumps(json.loads(head) | {"format": "stoker lines 9"}).encode()
    flipped = bytes([columns[0] ^ 1, *columns[1:]])
    return [
        b"",
        b"no index\n",
        content[:-8],
        content + b"x",
        b"{}\n",
        b"\xff\n",
        other + b"\n" + columns,
        head + b"\n" + flipped,
    ]


@pytest.mark.parametrize("which", range(8))
def test_damaged_indexes_are_made_anew(tmp_path: Path, which: int) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\nb\n")
    made(path)
    beside = Path(place_of(str(path), RULES[0]))
    whole = beside.read_bytes()
    beside.write_bytes(damaged(whole)[which])
    assert made(path).offsets.tolist() == [0, 2, 4]
    assert beside.read_bytes() == whole


def test_indexes_of_other_rules_stand_beside_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b'a\n\n"b\nc"\n')
    expected = [[0, 2, 3, 6, 9], [0, 3, 6, 9], [0, 3, 9], [0, 3, 6, 9]]
    for _ in range(2):
        assert [made(path, rule).offsets.tolist() for rule in RULES] == expected


def test_an_index_that_cannot_be_written_lives_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\nb\n")

    def refused(*_: object) -> None:
        raise PermissionError(13, "not here")

    monkeypatch.setattr(os, "replace", refused)
    assert made(path).offsets.tolist() == [0, 2, 4]
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_grows_while_it_is_indexed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\nb\n")
    scan = line_index.scanned

    def growing(file: LocalFile, cutting: Cutting, begin: int) -> LineIndex:
        with open(path, "ab") as more:
            more.write(b"c\n")
        return scan(file, cutting, begin)

    monkeypatch.setattr(line_index, "scanned", growing)
    with pytest.raises(FileChangedError, match=r"a\.txt was written to while its lines were indexed"):
        made(path)
    assert list(tmp_path.iterdir()) == [path]
