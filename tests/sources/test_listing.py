"""Listings that are cached, and what makes them list again."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker import ImageFolder
from stoker.sources import image_folder, listing
from stoker.sources.listing import UNSURE, ListedFolder, list_folders

OLD = time.time() - 3600


class Scans(list[str]):
    """The folders that were listed, by their names."""


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scans]:
    seen, real = Scans(), listing.scan

    def scan(path: str) -> Any:
        seen.append(os.path.basename(path))
        return real(path)

    monkeypatch.setattr(listing, "scan", scan)
    monkeypatch.setattr(listing, "_GRAIN", 0)  # as if all folders had last changed long ago
    yield seen


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for folder in ("a", "a/deep", "b", "c"):
        (root / folder).mkdir(parents=True)
        for name in ("2.jpg", "1.png", "x.txt"):
            (root / folder / name).touch()
    return root


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "cached.listing"


def test_an_unchanged_folder_is_not_listed_again(root: Path, cache: Path, scans: Scans) -> None:
    first = ImageFolder(root, cache=cache)
    assert sorted(scans) == ["a", "b", "c", "deep"] and cache.exists()
    scans.clear()
    written = cache.stat().st_mtime_ns
    again = ImageFolder(root, cache=cache)
    assert scans == [] and cache.stat().st_mtime_ns == written
    assert again.samples == first.samples and again.targets == first.targets
    assert len(again) == 8


@pytest.mark.parametrize("change", ["add", "remove", "rename", "new folder", "folder goes", "folder moves"])
def test_a_changed_folder_is_listed_again(root: Path, cache: Path, scans: Scans, change: str) -> None:
    ImageFolder(root, cache=cache)
    scans.clear()
    if change == "add":
        (root / "a" / "deep" / "0.jpg").touch()
    elif change == "remove":
        (root / "a" / "deep" / "1.png").unlink()
    elif change == "rename":
        (root / "a" / "deep" / "1.png").rename(root / "a" / "deep" / "9.png")
    elif change == "new folder":
        (root / "a" / "deep" / "est").mkdir()
        (root / "a" / "deep" / "est" / "1.jpg").touch()
    elif change == "folder goes":
        for each in (root / "a" / "deep").iterdir():
            each.unlink()
        (root / "a" / "deep").rmdir()
    else:
        (root / "a" / "deep").rename(root / "b" / "deep")
    changed = ImageFolder(root, cache=cache)
    assert changed.samples == ImageFolder(root, cache=False).samples
    assert "c" not in scans[: scans.index("c")]
    scans.clear()
    assert ImageFolder(root, cache=cache).samples == changed.samples and scans == []


def test_classes_may_come_and_go(root: Path, cache: Path, scans: Scans) -> None:
    ImageFolder(root, cache=cache)
    scans.clear()
    (root / "c").rename(root / "aa")
    (root / "d").mkdir()
    (root / "d" / "1.jpg").touch()
    dataset = ImageFolder(root, cache=cache)
    assert dataset.classes == ["a", "aa", "b", "d"] and set(scans) == {"aa", "d"}
    assert dataset.samples == ImageFolder(root, cache=False).samples


def test_a_time_that_is_set_back_does_not_hide_a_change(root: Path, cache: Path, scans: Scans) -> None:
    os.utime(root / "b", (OLD, OLD))
    ImageFolder(root, cache=cache)
    (root / "b" / "0.jpg").touch()
    os.utime(root / "b", (OLD, OLD))  # as an archiver does
    assert len(ImageFolder(root, cache=cache)) == 9


def test_a_folder_that_has_just_changed_is_not_trusted(root: Path) -> None:
    found = list_folders(str(root), ["a", "b"], lambda path: True)
    assert {folder.stamp for folder in found.folders} == {UNSURE} and found.changed


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "other version", "text", "sizes", "another root"])
def test_a_damaged_cache_is_written_anew(root: Path, cache: Path, scans: Scans, damage: str) -> None:
    whole = ImageFolder(root, cache=cache).samples
    data = cache.read_bytes()
    if damage == "another root":
        ImageFolder(root, cache=cache.with_name("other"))
        data = cache.with_name("other").read_bytes().replace(b"/root", b"/riot")
    cache.write_bytes(
        {
            "empty": b"",
            "cut": data[:-5],
            "flipped": data[:-5] + bytes([data[-5] ^ 1]) + data[-4:],
            "other version": data.replace(b"listing 1", b"listing 9", 1),
            "text": b"stoker listing 1\nnot JSON\n",
            "sizes": data.replace(b'"sizes": [', b'"sizes": ["x", ', 1),
            "another root": data,
        }[damage]
    )
    scans.clear()
    assert ImageFolder(root, cache=cache).samples == whole and len(scans) == 4
    scans.clear()
    assert ImageFolder(root, cache=cache).samples == whole and scans == []


def test_small_folders_leave_no_file_in_the_users_cache(root: Path, own_cache: Path) -> None:
    ImageFolder(root)
    assert list(own_cache.iterdir()) == []


def test_large_folders_are_cached_for_the_user(
    root: Path, own_cache: Path, scans: Scans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_folder, "_SMALL", 7)
    monkeypatch.chdir(root.parent)
    first = ImageFolder(root)
    scans.clear()
    assert ImageFolder("root").targets == first.targets and scans == []  # by another spelling
    (kept,) = own_cache.rglob("*.listing")
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_cache_that_cannot_be_written(
    root: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(image_folder, "_SMALL", 0)
    (own_cache / "stoker").touch()  # a file where a folder should be
    caplog.set_level("INFO", "stoker")
    assert len(ImageFolder(root)) == 8
    assert "cannot be cached" in caplog.text
    with pytest.raises(OSError):
        ImageFolder(root, cache=own_cache / "stoker" / "listing")


def test_a_cache_file_beside_a_function_is_refused(root: Path, cache: Path) -> None:
    with pytest.raises(ValueError, match="what a function accepts cannot be cached"):
        ImageFolder(root, is_valid_file=lambda path: True, cache=cache)


def test_a_chosen_subset_has_a_cache_of_its_own(root: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    monkeypatch.setattr(image_folder, "_SMALL", 0)

    class Two(ImageFolder):
        def find_classes(self, directory: Any) -> Any:
            return ["a", "b"], {"a": 0, "b": 1}

    assert (len(ImageFolder(root)), len(Two(root)), len(ImageFolder(root)), len(Two(root))) == (8, 6, 8, 6)
    assert len(list(own_cache.rglob("*.listing"))) == 2


def test_nothing_is_left_of_a_file_that_could_not_be_written(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        listing.save(cache, {"root": "x"}, [ListedFolder("a", UNSURE, 1, b"1.jpg\0")])
    assert list(cache.parent.iterdir()) == []


PROGRAM = """
import sys
from stoker.sources import listing
listing._QUIET = listing._EACH = {quiet}
listing.list_folders(sys.argv[1], ["a", "b", "c"], str)
"""


@pytest.mark.parametrize(("quiet", "shown"), [(0, True), (60, False)])
def test_the_progress_line_appears_on_a_terminal(root: Path, quiet: float, shown: bool) -> None:
    main, other = pty.openpty()
    try:
        subprocess.run([sys.executable, "-c", PROGRAM.format(quiet=quiet), root], stderr=other, check=True, timeout=60)
        os.set_blocking(main, False)
        try:
            text = os.read(main, 1 << 16).decode()
        except BlockingIOError:
            text = ""
    finally:
        os.close(main)
        os.close(other)
    assert ("files in 1 folders" in text) == shown
    assert text.endswith("\r\x1b[K") == shown


def test_the_progress_line_is_for_terminals_alone(root: Path) -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM.format(quiet=0), root], capture_output=True, check=True)
    assert run.stderr == b""
