from __future__ import annotations

import gzip
import itertools
import os
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import MissingExtraError, StateFormatError, StateMismatchError
from stoker.loader.dataloader import DataLoader
from stoker.sources.lines import opened_text
from stoker.sources.lines.opened_text import zstd_module
from stoker.sources.lines.text_lines import TextLineStream
from stoker.testing.streams import StreamSuite, assert_resumes, through_json

LINES = ["first", "", "zwölf Boxkämpfer", "", "", "日本語", "last"]


def write(path: Path, data: bytes) -> Path:
    if path.suffix == ".gz":
        data = gzip.compress(data)
    elif path.suffix == ".zst":
        pytest.importorskip("backports.zstd")
        half, zstd = len(data) // 2, zstd_module()
        options = {zstd.CompressionParameter.checksum_flag: 1}
        data = b"".join(zstd.compress(part, options=options) for part in (data[:half], data[half:]))
    path.write_bytes(data)
    return path


def state(of: int, begun: Any, done: str = "0") -> dict[str, Any]:
    return {"shards": {"0/1": {"of": of, "round": 0, "done": done, "begun": begun}}}


def descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


class TestResume(StreamSuite):
    @pytest.fixture(params=["plain", "gzip", "zstd", "a block of 4 bytes"])
    def make(self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        if request.param == "a block of 4 bytes":
            monkeypatch.setattr(opened_text, "BLOCK", 4)
        data = "\n".join(LINES).encode()
        suffix = {"gzip": ".gz", "zstd": ".zst"}.get(request.param, ".txt")
        contents = [data, b"", data + b"\n", b"\n", b"x"]
        paths = [write(tmp_path / f"{number}{suffix}", part) for number, part in enumerate(contents)]
        return lambda: TextLineStream(paths)


@pytest.mark.parametrize("suffix", [".txt", ".gz", ".zst"])
def test_lines_are_those_of_the_files_without_their_ends(tmp_path: Path, suffix: str) -> None:
    unix = write(tmp_path / f"unix{suffix}", "\n".join([*LINES, ""]).encode())
    windows = write(tmp_path / f"windows{suffix}", "\r\n".join([*LINES, ""]).encode())
    without_end = write(tmp_path / f"open{suffix}", b"a\rb\n\r\nc\r")
    assert list(TextLineStream([unix, windows, without_end])) == [*LINES, *LINES, "a\rb", "", "c\r"]
    assert list(TextLineStream(str(unix))) == list(TextLineStream(unix)) == LINES


def test_gzip_is_known_by_its_bytes_and_may_have_members(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(gzip.compress(b"a\nb") + gzip.compress(b"c\nd\n") + bytes(100))  # padded, as tapes are
    assert assert_resumes(lambda: TextLineStream(path)) == ["a", "bc", "d"]
    path.write_bytes(b"\x1f")
    assert list(TextLineStream(path, "latin-1")) == ["\x1f"]


def test_lines_longer_than_a_block(tmp_path: Path) -> None:
    lines = ["a" * 300_000, "b", "c" * 1_000_000]
    path = write(tmp_path / "long.txt", "\n".join(lines).encode())
    assert list(TextLineStream(path)) == lines


def test_the_state_is_a_byte(tmp_path: Path) -> None:
    dataset = TextLineStream([write(tmp_path / name, "ä\nb\n".encode()) for name in ("1.txt", "2.gz")])
    lines = iter(dataset)
    assert [(next(lines), dataset.state_dict()) for _ in range(3)] == [
        ("ä", {"shards": {"0/1": {"of": 2, "round": 0, "done": "0", "begun": [[0, [3, 1]]]}}}),
        ("b", {"shards": {"0/1": {"of": 2, "round": 0, "done": "0", "begun": [[0, [5, 2]]]}}}),
        ("ä", {"shards": {"0/1": {"of": 2, "round": 0, "done": "1", "begun": [[1, [3, 1]]]}}}),
    ]


def test_plain_file_is_resumed_without_rereading(tmp_path: Path) -> None:
    path = write(tmp_path / "large.txt", b"x" * 99 + b"\n" + b"y\nz\n")
    with open(path, "r+b") as file:
        file.truncate(1 << 36)  # a hole that would take minutes to read
        file.seek((1 << 36) - 4)
        file.write(b"\na\nb")
    dataset = TextLineStream(path)
    dataset.load_state_dict(state(1, begun=[[0, [(1 << 36) - 3, 3]]]))
    assert list(dataset) == ["a", "b"]


def test_each_shard_has_its_own_files(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{number}.txt", f"{number}\n".encode()) for number in range(5)]
    dataset = TextLineStream(paths)
    assert dataset.num_shards == 5
    assert [list(dataset.shard(2, index)) for index in range(2)] == [["0", "2", "4"], ["1", "3"]]
    for number, index in [(6, 0), (2, 2), (2, -1), (0, 0)]:
        with pytest.raises(ValueError, match=f"no share {index} of {number} shares of 5 shards"):
            dataset.shard(number, index)


@pytest.mark.parametrize("suffix", [".txt", ".gz", ".zst"])
def test_no_descriptor_is_held_between_lines(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"a{suffix}", b"a\nb\n")
    before = descriptors()
    dataset = TextLineStream([path, path])
    lines = iter(dataset)
    assert [next(lines) for _ in range(3)] == ["a", "b", "a"]
    assert descriptors() == before


def test_a_fork_reads_on_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened_text, "BLOCK", 4)
    dataset = TextLineStream(write(tmp_path / "a.txt", b"".join(b"%d\n" % number for number in range(100))))
    lines = iter(dataset)
    next(lines)
    child = os.fork()
    if not child:
        os._exit(0 if list(lines) == [str(number) for number in range(1, 100)] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert list(lines) == [str(number) for number in range(1, 100)]


def test_lines_are_read_in_other_encodings(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "größe\nzahl\n".encode("cp1252"))
    assert list(TextLineStream(path, encoding="cp1252")) == ["größe", "zahl"]
    path = write(tmp_path / "b.txt", "größe\nzahl\n".encode("utf-8-sig"))
    assert list(TextLineStream(path, encoding="utf-8-sig")) == ["größe", "zahl"]


def test_undecodable_line_is_named_and_the_next_follows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"good\nb\xffd\ngood again\n")
    dataset = TextLineStream(path)
    lines = iter(dataset)
    assert next(lines) == "good"
    with pytest.raises(UnicodeDecodeError, match=r"position 1: .*\(line 2 of .*a\.txt, which ends at byte 9\)"):
        next(lines)
    state = through_json(dataset.state_dict())
    assert list(lines) == ["good again"]
    dataset.load_state_dict(state)
    assert list(dataset) == ["good again"]
    assert list(TextLineStream(path, errors="replace")) == ["good", "b\ufffdd", "good again"]
    assert list(TextLineStream(path, errors="ignore")) == ["good", "bd", "good again"]


@pytest.mark.parametrize("cut", ["truncated", "corrupt"])
def test_a_damaged_gzip_is_named_and_the_next_file_follows(tmp_path: Path, cut: str) -> None:
    data = bytearray(gzip.compress(b"".join(b"%d\n" % number for number in range(1000))))
    path, good = tmp_path / "bad.gz", write(tmp_path / "good.gz", b"good\n")
    if cut == "corrupt":
        data[-8] ^= 1  # the checksum
    path.write_bytes(data if cut == "corrupt" else data[: len(data) // 2])
    lines = iter(TextLineStream([path, good]))
    seen = []
    with pytest.raises(OSError, match=r"bad\.gz cannot be read beyond byte \d+ of its text: "):
        for line in lines:
            seen.append(line)
    assert seen == [str(number) for number in range(len(seen))]
    readable = zlib.decompressobj(31).decompress(path.read_bytes()[:-8])
    assert len(seen) >= readable.count(b"\n") - 1, "good text is lost before the damage"
    assert list(lines) == ["good"]


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened_text, "BLOCK", 4)
    path = write(tmp_path / "a.txt", b"a\nb\nc\nd\n")
    lines = iter(TextLineStream(path))
    assert next(lines) == "a"
    write(path, b"other\nlines\n")
    with pytest.raises(OSError, match=r"a\.txt .* has changed while it was read"):
        list(lines)
    lines = iter(TextLineStream(path))
    path.unlink()
    with pytest.raises(FileNotFoundError, match="No such file"):
        next(lines)


@pytest.mark.parametrize(
    ("state", "error", "match"),
    [
        (state(1, begun=[[0, [2, 1]]]), StateMismatchError, r"byte 2 of .*a\.txt, but no line begins there"),
        (state(1, begun=[[0, [100, 1]]]), StateMismatchError, r"byte 100 of .*a\.txt, but no line begins there"),
        (state(2, begun=[]), StateMismatchError, "the state is of 2 shards, but there are 1 now"),
        (state(1, begun=[[0, [2]]]), StateFormatError, r"a byte and a line were expected in a state, found \[2\]"),
        (state(1, begun=[[0, 2]]), StateFormatError, "a byte and a line were expected in a state, found 2"),
        (state(1, begun=[[0]]), StateFormatError, "a state of shards was expected, found .*begun"),
        ({"shards": 3}, StateFormatError, "a state of shards was expected, found .*3"),
    ],
)
def test_states_of_other_files_are_refused(
    tmp_path: Path, state: dict[str, Any], error: type[Exception], match: str
) -> None:
    dataset = TextLineStream(write(tmp_path / "a.txt", b"line\nb"))
    dataset.load_state_dict(state)
    with pytest.raises(error, match=match):
        list(dataset)


def test_bad_arguments_are_refused_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"a\n")
    with pytest.raises(ValueError, match="no files were given"):
        TextLineStream([])
    with pytest.raises(FileNotFoundError, match=r"there is no file .*missing \(looked in .*holds a\.txt\)"):
        TextLineStream([path, tmp_path / "missing", tmp_path])
    with pytest.raises(ValueError, match="unknown encoding: klingon"):
        TextLineStream(path, encoding="klingon")
    with pytest.raises(ValueError, match="unknown error handler name 'whatever'"):
        TextLineStream(path, errors="whatever")
    for encoding in ("utf-16", "utf-32-le", "cp037"):
        with pytest.raises(ValueError, match=f"a text in {encoding} cannot be cut at bytes of value 10"):
            TextLineStream(path, encoding=encoding)
    with pytest.raises(TypeError):
        TextLineStream([3])  # type: ignore[list-item]


@pytest.mark.parametrize(("before", "after"), [(3, 2), (1, 3)])
def test_a_loader_goes_on_with_another_number_of_workers(tmp_path: Path, before: int, after: int) -> None:
    paths = [write(tmp_path / f"{n}.txt", b"".join(b"%d %d\n" % (n, line) for line in range(9 + n))) for n in range(5)]
    expected = sorted(TextLineStream(paths))
    for batches in (0, 1, 6, 11):
        loader = DataLoader(TextLineStream(paths), batch_size=3, num_workers=before, worker_method="thread")
        given = list(itertools.islice(loader, batches))
        other = DataLoader(TextLineStream(paths), batch_size=3, num_workers=after, worker_method="thread")
        other.load_state_dict(through_json(loader.state_dict()))
        given += list(other)
        assert sorted(itertools.chain.from_iterable(given)) == expected


@pytest.mark.parametrize("cut", ["truncated", "corrupt"])
def test_a_damaged_zstd_is_named_and_the_next_file_follows(tmp_path: Path, cut: str) -> None:
    good = write(tmp_path / "good.zst", b"good\n")
    path = write(tmp_path / "bad.zst", b"".join(b"%d\n" % number for number in range(100_000)))
    data = bytearray(path.read_bytes())
    if cut == "corrupt":
        data[len(data) // 2 : len(data) // 2 + 50] = bytes(50)
    path.write_bytes(data if cut == "corrupt" else data[:-9])
    lines = iter(TextLineStream([path, good]))
    seen = []
    with pytest.raises(OSError, match=r"bad\.zst cannot be read beyond byte \d+ of its text: "):
        for line in lines:
            seen.append(line)
    assert (
        seen == [str(number) for number in range(len(seen))] or cut == "corrupt"
    )  # a checksum stands behind its frame
    assert list(lines) == ["good"]


def test_zstd_without_its_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, plain = write(tmp_path / "a.zst", b"a\n"), write(tmp_path / "b.txt", b"b\n")
    unnamed = path.rename(tmp_path / "a.log")
    for name in ("backports", "backports.zstd", "compression", "compression.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    lines = iter(TextLineStream([unnamed, plain]))
    with pytest.raises(MissingExtraError, match=r"a\.log cannot be read .*install the extra stoker\[zstd\]"):
        next(lines)
    assert list(lines) == ["b"]
    unnamed.rename(path)
    with pytest.raises(MissingExtraError, match=r"stoker\[zstd\]"):
        TextLineStream(path)
