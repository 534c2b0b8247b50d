"""Places on the Hugging Face Hub: `hf://datasets/owner/name@revision/path`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote, unquote

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
    """Returns the parts of a URL of scheme hf.

    Raises:
        ValueError: it names no repository.
    """
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
