from __future__ import annotations

import pytest

from stoker.sources.urls import ObjectURL, is_remote, parsed, shown, with_suffix, without_secrets


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("s3://bucket/a/b c%20#?.tar", ObjectURL("s3", "bucket", "a/b c%20#?.tar")),
        ("S3A://bucket/a", ObjectURL("s3", "bucket", "a")),
        ("gs://bucket", ObjectURL("gs", "bucket", "")),
        ("az://container/a", ObjectURL("az", "container", "a")),
        ("abfs://container@account.dfs.core.windows.net/a/b", ObjectURL("az", "container", "a/b", "account")),
        ("https://host:8080/a%20b/c?sig=1", ObjectURL("http", "https://host:8080?sig=1", "a b/c")),
    ],
)
def test_parts_of_a_url(url: str, parts: ObjectURL) -> None:
    assert is_remote(url) and parsed(url) == parts


@pytest.mark.parametrize("url", ["s3://", "s3:///a", "https:///a"])
def test_url_without_a_bucket_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="names no"):
        parsed(url)


def test_paths_are_local() -> None:
    assert [is_remote(place) for place in ("/a", "a/b", "C:\\a", "file:///a", "ftp://h/a", "s3:/a")] == [False] * 6


def test_secrets_are_not_shown() -> None:
    assert shown("https://user:pw@host/a b?X-Signature=1#2") == "https://host/a b"
    assert shown("abfs://container@account.dfs.core.windows.net/a") == "abfs://container@account.dfs.core.windows.net/a"
    assert without_secrets("GET https://user:pw@host/a?sig=1 failed: http://h/b?sig=2, twice") == (
        "GET https://host/a failed: http://h/b, twice"
    )


def test_suffix_comes_before_the_query() -> None:
    assert with_suffix("s3://b/a.tar", ".index") == "s3://b/a.tar.index"
    assert with_suffix("https://h/a.tar?sig=1", ".index") == "https://h/a.tar.index?sig=1"


@pytest.mark.parametrize("host", ["evil.example\\@good.example", "evil.example good.example", "evil.example\x7f"])
def test_host_that_others_read_in_another_way_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="names no host"):
        parsed(f"https://{host}/a.tar")
    assert parsed("https://user:pass%20word@good.example:81/a.tar").key == "a.tar"
