"""URLs of data: which store a place is in, and how messages show it."""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^\s\"'<>(),]+")

STORES = {
    **{"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az", "abfs": "az", "abfss": "az"},
    **{"http": "http", "https": "http", "hf": "hf"},
}
"""The kind of store for each scheme that can be read. Places of the Hugging Face Hub are parsed by `hub_place`."""
GLOB = frozenset("*?[")


class ObjectURL(NamedTuple):
    """An object of a store.

    Attributes:
        kind: of the store: "s3", "gs", "az" or "http".
        root: the bucket or container; of "http", the URL of the server with its query, which may sign the request.
        key: of the object in it.
        account: the account in a URL of Azure, `abfs://container@account.dfs.core.windows.net/key`; else empty.
    """

    kind: str
    root: str
    key: str
    account: str = ""


def scheme_of(place: str) -> str:
    """Returns the scheme of a URL in lower case; empty for a path."""
    match = _URL.match(place)
    return match[1].lower() if match else ""


def is_remote(place: str) -> bool:
    """Returns whether a place is a URL of an object store or a web server."""
    return scheme_of(place) in STORES


def parsed(url: str) -> ObjectURL:
    """Returns the parts of the URL of an object. Keys are taken as they are, except of web servers.

    Raises:
        ValueError: it names no bucket, container or host.
    """
    scheme = scheme_of(url)
    kind = STORES[scheme]
    if kind == "http":
        parts = urlsplit(url)
        if not parts.netloc:
            raise ValueError(f"{shown(url)} names no host")
        return ObjectURL(kind, urlunsplit((scheme, parts.netloc, "", parts.query, "")), unquote(parts.path).lstrip("/"))
    bucket, _, key = url[len(scheme) + 3 :].partition("/")
    container, _, host = bucket.partition("@") if kind == "az" else (bucket, "", "")
    if not container:
        raise ValueError(f"{shown(url)} names no bucket: it is {scheme}://bucket/name")
    return ObjectURL(kind, container, key, host.partition(".")[0])


def with_suffix(url: str, suffix: str) -> str:
    """Returns the URL of the object whose name is that of another one and a suffix."""
    if STORES[scheme_of(url)] != "http":
        return url + suffix
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, parts.path + suffix, parts.query, ""))


_PACK = "Or pack it once into tar shards or Parquet files (stoker pack), which are read by URL."


def check_local(place: str, what: str, instead: str = _PACK) -> None:
    """Checks that a place is no URL.

    Args:
        place: a path.
        what: the word for what is read, in the plural.
        instead: what a user of URLs can do, beside a copy.

    Raises:
        ValueError: it is a URL.
    """
    if scheme_of(place) and not os.path.exists(place):
        raise ValueError(
            f"{shown(place)} is a URL, and {what} take local paths only: copy the data to a local disk. {instead}"
        )


def shown(place: str) -> str:
    """Returns a place for messages: of a URL, without user, password, query and fragment, which may be secrets."""
    if not scheme_of(place):
        return place
    url = urlsplit(place)
    user, _, host = url.netloc.rpartition("@")
    is_container = url.scheme in ("abfs", "abfss") and ":" not in user
    return urlunsplit((url.scheme, url.netloc if is_container else host, url.path, "", ""))


def without_secrets(text: str) -> str:
    """Returns a text whose URLs are shown without user, password, query and fragment."""
    return _IN_TEXT.sub(lambda found: shown(found[0]), text)
