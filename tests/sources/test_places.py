from __future__ import annotations

from pathlib import Path

import pytest

from stoker.errors import ObjectStoreError
from stoker.sources import places
from stoker.sources.places import expand_braces, places_of
from stoker.sources.storage import raise_as_ours
from stoker.sources.urls import shown


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("a", ["a"]),
        ("a{1..3}b", ["a1b", "a2b", "a3b"]),
        ("{08..11}", ["08", "09", "10", "11"]),
        ("{000..4..2}", ["000", "002", "004"]),
        ("{3..1}", ["3", "2", "1"]),
        ("{-1..1}", ["-1", "0", "1"]),
        ("{x,y}{0..1}", ["x0", "x1", "y0", "y1"]),
        ("{a,b{1,2}}.tar", ["a.tar", "b1.tar", "b2.tar"]),
        ("{a,}", ["a", ""]),
        ("{}", ["{}"]),
        ("{one}", ["{one}"]),
        ("{a{1,2}", ["{a{1,2}"]),
        ("}{1..2}", ["}1", "}2"]),
    ],
)
def test_braces_expand_as_in_a_shell(pattern: str, texts: list[str]) -> None:
    assert expand_braces(pattern) == texts


def test_braces_agree_with_the_braceexpand_package() -> None:
    braceexpand = pytest.importorskip("braceexpand")
    for pattern in ("p-{000..012}.tar", "{a,b,c}/{1..3}", "{a,b{1,2}}", "{5..1}", "x{0..6..3}y", "no braces"):
        assert expand_braces(pattern) == list(braceexpand.braceexpand(pattern)), pattern


def test_huge_range_is_refused() -> None:
    for pattern in ("{0..99999999999}", "{0..9999}{0..9999}"):
        with pytest.raises(ValueError, match="more than 10,000,000"):
            expand_braces(pattern)


def test_places_are_paths_patterns_and_lists(tmp_path: Path) -> None:
    for name in ("a0.tar", "a1.tar", "b[1].tar", "c.txt"):
        (tmp_path / name).touch()
    at = f"{tmp_path}/"
    assert places_of(tmp_path / "c.txt", "files") == [at + "c.txt"]
    assert places_of(at + "a*.tar", "files") == [at + "a0.tar", at + "a1.tar"]
    assert places_of(at + "a{1..0}.tar", "files") == [at + "a1.tar", at + "a0.tar"]
    assert places_of([at + "c.txt", tmp_path / "a0.tar"], "files") == [at + "c.txt", at + "a0.tar"]
    assert places_of(at + "b[1].tar", "files") == [at + "b[1].tar"], "a name that exists is no pattern"
    assert places_of(f"file://{tmp_path}/c.txt", "files") == [at + "c.txt"]


def test_missing_places_are_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "a0.tar").touch()
    with pytest.raises(
        FileNotFoundError, match=r"no file .*a1\.tar, and none for 1 other of the given shards: .*a2\.tar"
    ):
        places_of(f"{tmp_path}/a{{0..2}}.tar", "shards")
    with pytest.raises(FileNotFoundError, match=r"b\*\.tar"):
        places_of(f"{tmp_path}/b*.tar", "shards")
    with pytest.raises(ValueError, match="no shards"):
        places_of([], "shards")
    with pytest.raises(ValueError, match=r"is a folder.*/\*"):
        places_of(tmp_path, "shards")


def test_secrets_in_urls_are_not_shown() -> None:
    url = "s3://user:secret@bucket.example/a/b.tar?X-Signature=secret#secret"
    assert shown(url) == "s3://bucket.example/a/b.tar"
    assert shown("plain/pa?th") == "plain/pa?th"
    with pytest.raises(ValueError, match="scheme 'ftp'") as caught:
        places_of(url.replace("s3:", "ftp:"), "shards")
    assert "secret" not in str(caught.value)


class Refused:
    """A store without credentials."""

    def __init__(self, options: object = None) -> None:
        pass

    def names(self, url: str) -> list[str]:
        raise_as_ours(Unreachable(f"http://169.254.169.254/latest: {url}"), url, 1, 0.0)


class Unreachable(Exception):
    """As obstore raises it: no OSError."""


def test_a_pattern_is_whole_in_the_error_of_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "ObjectStorage", Refused)
    with pytest.raises(PermissionError, match=r"^s3://data/t-\*\.tar: no credentials were found"):
        places_of("s3://data/t-*.tar", "shards")


def test_a_web_server_is_not_asked_for_credentials() -> None:
    with pytest.raises(ObjectStoreError, match="cannot be reached") as caught:
        raise_as_ours(Unreachable("connect to 169.254.169.254 failed"), "http://example.com/a.tar", 1, 0.0)
    assert "skip_signature" not in str(caught.value)


def test_what_lies_beside_a_missing_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(8):
        (tmp_path / f"{number}.csv").touch()
    with pytest.raises(FileNotFoundError, match=r"there is no file no/x\.csv, and none for 1 other .*: y\.csv \("):
        places_of(["no/x.csv", "y.csv"], "files")
    with pytest.raises(FileNotFoundError, match=r"looked in .*, which holds 0\.csv, .*5\.csv, … \(8 names\)\)"):
        places_of("*.json", "files")
