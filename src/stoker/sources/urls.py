"""URLs of data: which store a place is in, how messages show it, and places on the Hugging Face Hub."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit, urlunsplit

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^\s\"'<>(),]+")

STORES = {
    **{"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az", "abfs": "az", "abfss": "az"},
    **{"http": "http", "https": "http", "hf": "hf"},
}
"""The kind of store for each scheme that can be read. Places of the Hugging Face Hub are parsed by `hub_place`."""
GLOB = frozenset("*?[")
_NO_HOST = re.compile(r"[^\w.\-~!$&'()*+,;=:@%\[\]]")
"""A character of no host, nor of what stands before it in a URL (RFC 3986)."""


class ObjectURL(NamedTuple):
    """An object of a store.

    Attributes:
        kind: of the store: "s3", "gs", "az" or "http".
        root: the bucket or container; of "http", the URL of the server with its query, which may sign the request.
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
    """Returns the parts of the URL of an object. Keys are taken as they are, except of web servers."""
    scheme = scheme_of(url)
    kind = STORES[scheme]
    if kind == "http":
        parts = urlsplit(url)
        if not parts.netloc or _NO_HOST.search(parts.netloc):  # which others may take for the end of the host
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
        what: the word for what is read, in the plural.
        instead: what a user of URLs can do, beside a copy.
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
    return _IN_TEXT.sub(lambda match: shown(match[0]), text)


# Places on the Hugging Face Hub: `hf://datasets/owner/name@revision/path`.


_KINDS = {"datasets": "dataset", "spaces": "space", "models": "model"}
_PREFIXES = {"dataset": "datasets/", "space": "spaces/", "model": ""}
_AFTER_SCHEME = re.compile(
    r"(?:(datasets|spaces|models)/)?([^/@]+/[^/@]+)(?:@(refs/(?:convert|pr)/[^/]+|[^/]*))?(?:/(.*))?", re.DOTALL
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHORT = {"~parquet": "refs/convert/parquet"}
"""Names that Hugging Face's own libraries understand too."""


class HubPlace(NamedTuple):
    """A file, or a pattern of files, of a repository.

    Attributes:
        kind: of the repository: "dataset", "model" or "space".
        repository: its owner and name, with a slash between them.
        revision: a branch, a tag or a commit; "main" if none is given.
        path: in the repository.
    """

    kind: str
    repository: str
    revision: str
    path: str

    @property
    def root(self) -> str:
        """The URL of the repository at its revision, with a slash at its end."""
        return f"hf://{_PREFIXES[self.kind]}{self.repository}@{quote(self.revision, safe='~')}/"

    @property
    def url(self) -> str:
        """The URL of the place."""
        return self.root + self.path

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, whose files never change."""
        return _COMMIT.fullmatch(self.revision) is not None


def hub_place(url: str) -> HubPlace:
    """Returns the parts of a URL of scheme hf."""
    match = _AFTER_SCHEME.fullmatch(url[len("hf://") :])
    if match is None or (match[1] is None and match[2].partition("/")[0] in {*_KINDS, "buckets"}):
        raise ValueError(
            f"{url} names no repository of the Hugging Face Hub: it is hf://datasets/OWNER/NAME/PATH, "
            "hf://datasets/OWNER/NAME@REVISION/PATH, or without datasets/ for a model"
        )
    revision = unquote(match[3] or "main")
    return HubPlace(_KINDS[match[1] or "models"], match[2], _SHORT.get(revision, revision), match[4] or "")


def is_on_hub(place: str) -> bool:
    """Returns whether a place is a URL of scheme hf."""
    return place[:5].lower() == "hf://"


def hub_fingerprint(places: Iterable[str]) -> str | None:
    """Returns the repositories of places and their commits; None if no place is on the Hub.

    As the fingerprint of a dataset, it is compared when a state is loaded: an epoch does not go on with another commit.
    """
    roots = dict.fromkeys(hub_place(place).root for place in places if is_on_hub(place))
    return ", ".join(roots) or None
