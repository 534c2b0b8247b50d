from __future__ import annotations

import errno
import os
import resource
import signal
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import DuplicateKeyError, ShardError
from stoker.sources.storage import LocalFile
from stoker.sources.tar import writer as writer_module
from stoker.sources.tar.dataset import TarDataset
from stoker.sources.tar.index import loaded, scanned
from stoker.sources.tar.stream import TarStream
from stoker.sources.tar.writer import TarWriter


def samples(count: int, size: int = 100) -> list[dict[str, Any]]:
    return [{"__key__": f"{number:04}", "bin": bytes([number % 200]) * size, "cls": number} for number in range(count)]


def write(pattern: Any, given: list[dict[str, Any]], **limits: Any) -> list[str]:
    with TarWriter(pattern, **limits) as writer:
        for sample in given:
            writer.write(sample)
    return writer.shards


def test_written_samples_are_read_back(tmp_path: Path) -> None:
    image_module = pytest.importorskip("PIL.Image")
    torch = pytest.importorskip("torch")
    sample = {
        "__key__": "é/" + "n" * 150,
        "__other__": object(),
        "txt": "täxt",
        "cls": np.int64(7),
        "json": {"a": [1, None]},
        "a.npy": np.arange(5, dtype=np.uint8),
        "npz": {"x": np.ones(2)},
        "png": image_module.new("L", (3, 2), 9),
        "pth": {"w": torch.ones(2)},
        "empty": b"",
        "view": memoryview(b"view"),
    }
    (path,) = write(tmp_path / "a.tar", [sample])
    for found in (TarDataset(path)[0], next(iter(TarStream(path)))):
        assert list(found) == ["__key__", "__url__", *list(sample)[2:]]
        assert (found["txt"], found["cls"], found["json"]) == ("täxt", 7, {"a": [1, None]})
        assert (found["__key__"], found["empty"], found["view"]) == (sample["__key__"], b"", b"view")
        assert np.array_equal(found["a.npy"], sample["a.npy"]) and np.array_equal(found["npz"]["x"], np.ones(2))
        assert found["png"].getpixel((0, 0)) == 9 and found["pth"]["w"].tolist() == [1, 1]


def test_shards_are_limited_by_count(tmp_path: Path) -> None:
    paths = write(tmp_path / "s-%03d.tar", samples(25), max_count=10)
    assert [os.path.basename(path) for path in paths] == ["s-000.tar", "s-001.tar", "s-002.tar"]
    assert [len(TarDataset(path)) for path in paths] == [10, 10, 5]
    assert [sample["cls"] for sample in TarDataset(paths)] == list(range(25))


def test_shards_are_limited_by_size(tmp_path: Path) -> None:
    given = samples(10, 3000)
    given[4]["bin"] = bytes(100_000)
    paths = write(tmp_path / "s-%d.tar", given, max_size=20_000)
    assert [len(TarDataset(path)) for path in paths] == [4, 1, 4, 1]
    assert all(os.path.getsize(path) <= 20_000 for number, path in enumerate(paths) if number != 1)


def test_index_is_that_of_the_shard(tmp_path: Path) -> None:
    given = [*samples(5), {"__key__": "l" * 300, "txt": "long"}, {"__key__": "ü", "txt": ""}]
    (path,) = write(tmp_path / "a.tar", given)
    made, again = loaded(path + ".index"), scanned(LocalFile(path), path)
    assert made.offsets.tolist() == again.offsets.tolist()
    assert made.checks is not None and again.checks is not None
    assert made.checks.tolist() == again.checks.tolist()
    assert (made.version, made.digest) == (LocalFile(path).version, again.digest)


def test_tarfile_reads_written_shards(tmp_path: Path) -> None:
    (path,) = write(tmp_path / "a.tar", [{"__key__": "é/" + "n" * 150, "txt": "x"}, *samples(2)])
    with tarfile.open(path) as shard:
        assert shard.getnames() == ["é/" + "n" * 150 + ".txt", "0000.bin", "0000.cls", "0001.bin", "0001.cls"]
        assert {(member.mtime, member.uid, member.uname) for member in shard} == {(0, 0, "")}


def test_same_samples_make_the_same_bytes(tmp_path: Path) -> None:
    (one,), (other,) = write(tmp_path / "a.tar", samples(5)), write(tmp_path / "b.tar", samples(5))
    assert Path(one).read_bytes() == Path(other).read_bytes()


def test_read_samples_are_written_again(tmp_path: Path) -> None:
    (path,) = write(tmp_path / "a.tar", samples(3))
    (copy,) = write(tmp_path / "b.tar", list(TarStream(path, decode=False)))
    assert Path(path).read_bytes() == Path(copy).read_bytes()


def test_unfinished_shard_is_removed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="stop"), TarWriter(tmp_path / "s-%d.tar", max_count=2) as writer:
        for sample in samples(3):
            writer.write(sample)
        assert any(name.endswith(".partial") for name in os.listdir(tmp_path))
        raise RuntimeError("stop")
    assert sorted(os.listdir(tmp_path)) == ["s-0.tar", "s-0.tar.index"]
    writer = TarWriter(tmp_path / "t.tar")
    writer.write(samples(1)[0])
    del writer  # forgotten
    assert sorted(os.listdir(tmp_path)) == ["s-0.tar", "s-0.tar.index"]


def test_forked_child_leaves_the_shard_to_its_parent(tmp_path: Path) -> None:
    writer = TarWriter(tmp_path / "a.tar")
    writer.write(samples(1)[0])
    child = os.fork()
    if child == 0:
        writer.__del__()
        os._exit(0)
    os.waitpid(child, 0)
    writer.close()
    assert len(TarDataset(tmp_path / "a.tar")) == 1


def test_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writer_module.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "a.tar", samples(3))
    assert os.listdir(tmp_path) == []


def test_shard_is_given_up_after_a_failed_write(tmp_path: Path) -> None:
    writer = TarWriter(tmp_path / "a.tar")
    writer.write(samples(1)[0])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            writer.write({"__key__": "b", "bin": bytes(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    with pytest.raises(ShardError, match="an earlier write failed"):
        writer.write({"__key__": "c", "bin": b""})
    with pytest.raises(ShardError, match="an earlier write failed"):
        writer.close()
    assert os.listdir(tmp_path) == []


def test_existing_shard_is_kept(tmp_path: Path) -> None:
    (path,) = write(tmp_path / "a.tar", samples(3))
    with pytest.raises(FileExistsError, match=r"a\.tar exists"):
        write(tmp_path / "a.tar", samples(1))
    assert len(TarDataset(path)) == 3


@pytest.mark.parametrize(
    ("sample", "error", "message"),
    [
        ({"txt": "x"}, ValueError, "needs a key"),
        ({"__key__": "", "txt": "x"}, ValueError, "needs a key"),
        ({"__key__": "a"}, ValueError, "no entries"),
        ({"__key__": "a.b", "txt": "x"}, ValueError, "would not be read back"),
        ({"__key__": "a/.b", "txt": "x"}, ValueError, "would not be read back"),
        ({"__key__": "a/", "txt": "x"}, ValueError, "would not be read back"),
        ({"__key__": "a", "x/txt": b"x"}, ValueError, "would not be read back"),
        ({"__key__": "a", "": b"x"}, ValueError, "would not be read back"),
        ({"__key__": "../a", "txt": "x"}, ValueError, "leads out"),
        ({"__key__": "/a", "txt": "x"}, ValueError, "leads out"),
        ({"__key__": "a", "txt": "x", "TXT": "y"}, DuplicateKeyError, "two entries of extension 'txt'"),
        ({"__key__": "a", "cls": 1.5}, TypeError, "entry 'cls' of the sample 'a' is a float"),
        ({"__key__": "a", "bin": "text"}, TypeError, "pass bytes"),
        ({"__key__": "a", "npy": np.array([{}])}, TypeError, "pass bytes"),
        ({"__key__": "0000", "cls": 1}, DuplicateKeyError, "the key '0000' already"),
    ],
)
def test_bad_samples_are_refused(tmp_path: Path, sample: dict[str, Any], error: type[Exception], message: str) -> None:
    with TarWriter(tmp_path / "a.tar") as writer:
        writer.write(samples(1)[0])
        with pytest.raises(error, match=message):
            writer.write(sample)
    assert [found["__key__"] for found in TarDataset(tmp_path / "a.tar")] == ["0000"]


def test_limits_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_count is 0"):
        TarWriter(tmp_path / "%d.tar", max_count=0)
    with pytest.raises(ValueError, match="no place for the number"):
        TarWriter(tmp_path / "a.tar", max_count=2)
