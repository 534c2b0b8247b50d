"""What the datasets of lines, JSON Lines and CSV share."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import CompressedFileError, FileChangedError, RecordError, StokerWarning
from stoker.loader.dataloader import DataLoader
from stoker.sources.lines.csv_rows import CSVDataset, CSVStream
from stoker.sources.lines.json_lines import JSONLinesDataset, JSONLinesStream
from stoker.sources.lines.text_lines import TextLineDataset, TextLineStream
from stoker.testing.datasets import DatasetSuite

CSV = b'id,text\r\n1,"a, b"\r\n\r\n2,"two\nlines"\r\n3,"say ""so"""\r\n'
JSON = b'{"a": 1, "b": [1, 2]}\n\n{"a": "\xc3\xa9"}\n3'


class TestTheDatasets(DatasetSuite):
    @pytest.fixture(params=["lines", "json", "csv"])
    def make(self, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
        kind, content = {
            "lines": (TextLineDataset, b"a\n\nb\r\nlast"),
            "json": (JSONLinesDataset, JSON),
            "csv": (CSVDataset, CSV),
        }[request.param]
        for number in range(3):
            (tmp_path / f"{number}.txt").write_bytes(content)
        return lambda: kind(tmp_path / "*.txt")

    def delete(self, dataset: Any) -> str:
        for path in dataset.files:
            os.unlink(path)
        return os.path.dirname(dataset.files[0])


def test_lines_of_all_files_are_samples(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_bytes(b"a\r\n\r\nb\rc\n")
    (tmp_path / "2.txt").write_bytes(b"")
    (tmp_path / "3.txt").write_bytes("\n\nzwölf".encode())
    dataset = TextLineDataset(tmp_path / "{1,2,3}.txt")
    assert [dataset[index] for index in range(len(dataset))] == ["a", "", "b\rc", "", "", "zwölf"]
    assert [dataset[index] for index in range(6)] == list(TextLineStream(tmp_path / "*.txt"))
    assert dataset.describe(-1) == f"sample 5: line 3 of {tmp_path}/3.txt, byte 2"
    assert TextLineDataset(tmp_path / "1.txt", transform=len)[2] == 3


@pytest.mark.parametrize("kind", [TextLineDataset, TextLineStream])
def test_a_mark_of_utf8_belongs_to_no_line(kind: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("größe\nzahl".encode("utf-8-sig"))
    for encoding in ("utf-8", "utf-8-sig", "UTF8"):
        dataset = kind(path, encoding)
        assert (list(dataset) if kind is TextLineStream else [dataset[0], dataset[1]]) == ["größe", "zahl"]
    dataset = kind(path, "latin-1")
    assert (next(iter(dataset)) if kind is TextLineStream else dataset[0]) == "ï»¿grÃ¶Ã\x9fe"
    path.write_bytes(b"\xef\xbb\xbf")
    if kind is TextLineStream:
        assert list(kind(path)) == []
    else:
        with pytest.raises(ValueError, match="there is no record"):
            kind(path)


def test_a_pattern_that_finds_the_indexes_reads_only_data(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_bytes(CSV)
    for _ in range(2):
        assert len(CSVDataset(tmp_path / "*")) == 6
        assert len(TextLineDataset(tmp_path / "*")) == 2 * 6
        assert len(JSONLinesDataset(tmp_path / "*")) == 2 * 5
        (tmp_path / "a.csv.csv.index.0123abcd.partial").write_bytes(b"an index that another process writes")
    assert len(list(CSVStream(tmp_path / "*"))) == 6
    (tmp_path / "log.index").write_text("data\n")
    (tmp_path / "c.lines.index").write_text("data\n")  # of no file that is there
    assert TextLineDataset(tmp_path / "[cl]*.index").files == [f"{tmp_path}/c.lines.index", f"{tmp_path}/log.index"]


def test_a_line_in_another_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"good\nb\xffd\ngood again\n")
    with pytest.raises(UnicodeDecodeError, match=rf"position 1: .*\(line 2 of {path}, byte 5\)"):
        TextLineDataset(path)[1]
    assert TextLineDataset(path, errors="replace")[1] == "b\ufffdd"
    assert TextLineDataset(path, "latin-1")[1] == "bÿd"
    with pytest.raises(ValueError, match="a text in utf-16 cannot be cut at bytes of value 10"):
        TextLineDataset(path, "utf-16")


def test_bad_lines_go_to_the_error_policy(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("1\n2\n{bad\n4\n")
    loader = DataLoader(JSONLinesDataset(path), batch_size=2, num_workers=2, on_error="skip", collate_fn=list)
    with pytest.warns(StokerWarning, match=r"line 3 of .*a\.jsonl, byte 4: no JSON value"):
        assert list(loader) == [[1, 2], [4]]


@pytest.mark.parametrize("birth", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_a_shuffled_epoch_resumes_in_mid_epoch(birth: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("".join(f"{number}\n" for number in range(200)))

    def loader() -> DataLoader[Any]:
        options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": birth, "seed": 3, "shuffle": True}
        return DataLoader(TextLineDataset(path), batch_size=10, collate_fn=list, **options)

    with loader() as whole, loader() as begun, loader() as resumed:
        expected = list(whole)
        batches = iter(begun)
        found = [next(batches) for _ in range(7)]
        resumed.load_state_dict(begun.state_dict())
        found += list(resumed)
    assert found == expected
    assert sorted(int(line) for batch in found for line in batch) == list(range(200))


@pytest.mark.parametrize("kind", [TextLineDataset, JSONLinesDataset, CSVDataset])
def test_compressed_files_are_refused_and_their_stream_named(kind: Any, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(gzip.compress(b"a\n"))
    (tmp_path / "b").write_bytes(b"\x28\xb5\x2f\xfd-rest")
    stream = kind.__name__.replace("Dataset", "Stream")
    with pytest.raises(CompressedFileError, match=rf"a is compressed with gzip.*Read it with stoker\.{stream}"):
        kind(tmp_path / "a")
    with pytest.raises(CompressedFileError, match="b is compressed with zstd"):
        kind(tmp_path / "b")


def test_a_file_that_was_changed_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a\nb\n")
    dataset, open_already = TextLineDataset(path), TextLineDataset(path)
    assert open_already[1] == "b"
    path.write_text("other\nlines\n")
    for changed in (dataset, open_already):  # the second has the file open
        with pytest.raises(FileChangedError, match=r"a\.txt was changed since .*byte 2 is no longer where a record"):
            changed[1]
    assert TextLineDataset(path)[1] == "lines"
    dataset = TextLineDataset(path)
    path.write_text("xxxxx\nyyyyy\n")  # lines begin at the same bytes
    os.utime(path, ns=(1, 1))
    with pytest.raises(FileChangedError):
        dataset[1]


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="there is no record in 1 files"):
        TextLineDataset(path)
    with pytest.raises(TypeError, match="transform is a int"):
        TextLineDataset(path, transform=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="columns is a text, 'a', expected a list"):
        JSONLinesDataset(path, columns="a")
    with pytest.raises(FileNotFoundError, match=r"there is no file .*missing\.txt \(looked in"):
        TextLineDataset(tmp_path / "missing.txt")


def test_lines_that_end_in_cr_alone_name_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    said = r"tr '\\r' '\\n' < old > new"
    path.write_bytes(b"a,b\r1,2\r3,4\r")
    for read in (TextLineDataset, TextLineStream, JSONLinesDataset, JSONLinesStream, CSVDataset, CSVStream):
        with pytest.raises(RecordError, match=said):
            next(iter(read(path)))
    for content in (b"a\r", b"a\rb\n", b"a\r\n", b"a\rb\nc\r"):
        path.write_bytes(content)
        expected = [line.removesuffix(b"\r").decode() for line in content.removesuffix(b"\n").split(b"\n")]
        expected[-1] += "\r" * content.endswith(b"\r")  # no line end
        dataset = TextLineDataset(path)
        assert [dataset[index] for index in range(len(dataset))] == expected == list(TextLineStream(path))
    path.write_bytes(b'a\n"1\r2"')
    assert CSVDataset(path)[0] == {"a": "1\r2"} == next(iter(CSVStream(path)))
