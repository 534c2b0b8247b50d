from __future__ import annotations

from pathlib import Path

import pytest

from stoker.sources.places import expand_braces, places_of
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
    with pytest.raises(FileNotFoundError, match=r"2 of the given shards .*a1\.tar.*a2\.tar"):
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
