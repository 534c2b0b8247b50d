"""Folders of `CacheDataset` that others can write to: nothing in them is executed."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import CacheDataset, FolderOwnerError, from_iterable
from stoker.datasets.cache_store import FileStore, _opened
from stoker.datasets.sample_record import recorded

OTHER = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")


class Box:
    """A sample that only a pickle can hold."""

    def __init__(self, value: int) -> None:
        self.value = value


class Bomb:
    """Its pickle makes a folder when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def cached(folder: Path, samples: list[Any]) -> CacheDataset[Any]:
    return CacheDataset(samples, folder=folder, key="v1")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def store(folder: Path, slots: int, kind: str = "by index", key: str = "v1") -> FileStore:
    return FileStore(str(folder), (kind, key), slots, None)


@pytest.mark.parametrize("kind", ["alone", "in a record of a stream"])
def test_a_planted_pickle_is_not_executed(tmp_path: Path, kind: str) -> None:
    bomb, folder = tmp_path / "bomb", tmp_path / "cache"
    pickled = recorded(Bomb(bomb), 0, plain=False)
    assert pickle.loads(pickled[1:]) is None and bomb.exists(), "the bomb works"
    bomb.rmdir()
    if kind == "alone":
        samples: Any = [np.arange(3)]
        store(folder, 1).put(0, pickled)
    else:
        samples = from_iterable(lambda: iter([np.arange(3)]))
        store(folder, 1 << 16, "stream").put(0, recorded((0, [pickled], ({}, True)), 0))
    for _ in range(2):
        dataset = cached(folder, samples)
        (sample,) = list(dataset) if kind != "alone" else [dataset[0]]
        assert sample.tolist() == [0, 1, 2]
    assert not bomb.exists()


def test_records_of_the_former_format_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = tmp_path / "bomb"
    monkeypatch.setattr("stoker.datasets.cache_store.FORMAT_VERSION", 1)
    store(tmp_path, 1).put(0, pickle.dumps(Bomb(bomb)))
    monkeypatch.undo()
    assert cached(tmp_path, ["made anew"])[0] == "made anew"
    assert not bomb.exists()


def test_pickles_lie_in_a_folder_of_mode_700(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(0o755)
    assert cached(folder, [np.arange(3), 2])[0].tolist() == [0, 1, 2]
    assert not (folder / "pickles").exists()
    assert cached(folder, [0, Box(1)])[1].value == 1
    assert cached(folder, [0, None])[1].value == 1, "it was cached"
    assert (mode(folder), mode(folder / "pickles")) == (0o755, 0o700)
    (folder / "pickles").chmod(0o777)
    assert cached(folder, [0, None])[1].value == 1
    assert mode(folder / "pickles") == 0o700


def test_a_pickle_that_others_may_write_is_not_read(tmp_path: Path) -> None:
    assert cached(tmp_path, [Box(1)])[0].value == 1
    (path,) = (tmp_path / "pickles").iterdir()
    path.chmod(0o666)
    assert cached(tmp_path, ["made anew"])[0] == "made anew"
    with pytest.raises(FolderOwnerError, match=r"pickles/.*can be written by other users: .* folder of your own"):
        CacheDataset([Box(3)], folder=tmp_path, key="v1")._keep(0, Box(3))


@as_root
@pytest.mark.parametrize("given", [".", "pickles"])
def test_a_folder_of_another_user_is_refused_for_pickles(tmp_path: Path, given: str) -> None:
    assert cached(tmp_path, [Box(1)])[0].value == 1
    os.chown(tmp_path / given, OTHER, OTHER)
    dataset = cached(tmp_path, ["made anew"])
    assert dataset[0] == "made anew", "the pickle is not read"
    assert cached(tmp_path, [None])[0] == "made anew", "a record without pickle is kept and read"
    with pytest.raises(FolderOwnerError, match=f"belongs to user {OTHER}: reading a pickle executes") as caught:
        CacheDataset([Box(2), 0], folder=tmp_path, key="v1")[0]
    assert isinstance(caught.value, PermissionError)


@as_root
def test_two_users_share_records_without_pickle(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for parent in list(tmp_path.parents)[:3]:
        parent.chmod(0o755)
    assert cached(tmp_path, [np.arange(3), 1])[0].tolist() == [0, 1, 2]
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.setuid(OTHER)
            dataset = cached(tmp_path, [None, "not kept: the file is another user's"])
            os.write(writing, repr((dataset[0].tolist(), dataset[1], cached(tmp_path, [0, "again"])[1])).encode())
            code = 0
        finally:
            os._exit(code)  # whatever happens: this is a copy of pytest's process
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert os.read(reading, 1000) == b"([0, 1, 2], \"not kept: the file is another user's\", 'again')"
    os.close(reading), os.close(writing)


def test_a_link_in_the_place_of_the_file_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("content")
    cached(tmp_path / "cache", [1])
    (file,) = (tmp_path / "cache").iterdir()
    file.unlink()
    file.symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        cached(tmp_path / "cache", [1])
    assert target.read_text() == "content"


@pytest.mark.parametrize("permissions", [0o644, 0o444])
def test_a_fifo_in_the_place_of_the_file_is_refused(tmp_path: Path, permissions: int) -> None:
    cached(tmp_path, [1])
    (file,) = tmp_path.glob("*.samples")
    file.unlink()
    os.mkfifo(file)
    file.chmod(permissions)
    descriptors = len(os.listdir("/dev/fd"))
    with pytest.raises(OSError, match=f"no regular file in the place of its records.*{file.name}"):
        cached(tmp_path, [1])
    with pytest.raises(OSError, match="no regular file"):  # as a user who may only read it opens it
        _opened(str(file), os.O_RDONLY)
    assert len(os.listdir("/dev/fd")) == descriptors


def test_a_fifo_in_the_place_of_the_pickles_is_refused(tmp_path: Path) -> None:
    assert cached(tmp_path, [Box(1)])[0].value == 1
    (file,) = (tmp_path / "pickles").iterdir()
    file.unlink()
    os.mkfifo(file, 0o600)
    assert cached(tmp_path, ["made anew"])[0] == "made anew"
    with pytest.raises(OSError, match=f"no regular file in the place of its records.*pickles/{file.name}"):
        CacheDataset([Box(3)], folder=tmp_path, key="v1")._keep(0, Box(3))
