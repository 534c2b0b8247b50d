"""A wids index may name files of its folder, and hosts that its user has named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker import PlaylistError, TarDataset, TarWriter
from stoker.sources.tar.foreign_index import AllowedPlaces


def shard(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with TarWriter(path) as writer:
        writer.write({"__key__": "a", "cls": 1})
    return path


def playlist(path: Path, *urls: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"wids_version": 1, "shardlist": [{"url": url, "nsamples": 1} for url in urls]}))
    return path


def test_folders_of_the_given_places_are_allowed(tmp_path: Path) -> None:
    shard(tmp_path / "lists" / "below" / "a.tar")
    inside = shard(tmp_path / "lists" / "b.tar")
    other = shard(tmp_path / "other" / "c.tar")
    names = ["below/a.tar", "b.tar", str(inside), "below/../b.tar", "./b.tar"]
    assert len(TarDataset(playlist(tmp_path / "lists" / "wids.json", *names))) == 5
    elsewhere = playlist(tmp_path / "lists" / "wids.json", str(other))
    assert len(TarDataset([elsewhere, other])) == 2


@pytest.mark.parametrize(
    "name", ["../secret.tar", "{secret}", "**/../secret.tar", "{..,x}/secret.tar", "up/../secret.tar"]
)
def test_a_path_outside_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    secret = shard(tmp_path / "secret.tar")
    (tmp_path / "x").mkdir()
    (tmp_path / "lists" / "x").mkdir(parents=True)
    shard(tmp_path / "lists" / "x" / "secret.tar")
    (tmp_path / "lists" / "up").symlink_to(tmp_path / "x")
    wids = playlist(tmp_path / "lists" / "wids.json", name.replace("{secret}", str(secret)))
    with pytest.raises(PlaylistError, match=r"wids.json names .*secret.tar, which lies outside .* pass the shards"):
        TarDataset(wids)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://169.254.169.254/latest/a.tar", "169.254.169.254"),
        ("https://User:Pass@Evil.example:8080/a.tar?token=1", "evil.example:8080"),
        ("https://{evil.example,good.example}/a.tar", "evil.example"),
        ("s3a://bucket/a.tar", "s3://bucket"),
        ("abfs://box@account.dfs.core.windows.net/a.tar", "az://box@account"),
        ("hf://datasets/owner/name/a.tar", "hf://datasets/owner/name"),
        ("hf://owner/name@main/a.tar", "hf://owner/name"),
    ],
)
def test_another_host_is_refused_before_any_request(tmp_path: Path, url: str, host: str) -> None:
    wids = playlist(tmp_path / "wids.json", url)
    with pytest.raises(PlaylistError) as caught:
        TarDataset(wids)
    assert f"allowed_hosts=['{host}']" in str(caught.value)
    assert "Pass" not in str(caught.value) and "token" not in str(caught.value)
    AllowedPlaces([], [host]).check([url.replace("{evil.example,good.example}", "evil.example")], "wids.json")


def test_hosts_of_the_given_places_are_allowed() -> None:
    allowed = AllowedPlaces(["https://data.example/b.tar", "s3://bucket/x/*.tar"], ["s3://more"])
    allowed.check(["https://data.example/a.tar", "s3://bucket/y/a.tar", "s3://more/a.tar"], "wids.json")
    for other in ("https://data.example:81/a.tar", "s3://buckets/a.tar", "gs://bucket/a.tar"):
        with pytest.raises(PlaylistError):
            allowed.check([other], "wids.json")


def test_a_text_as_allowed_hosts_is_refused(tmp_path: Path) -> None:
    wids = playlist(tmp_path / "wids.json", "a.tar")
    with pytest.raises(TypeError, match="allowed_hosts is a text, expected a list"):
        TarDataset(wids, allowed_hosts="data.example")
