"""Files of repositories of the Hugging Face Hub, as files that are read by position."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

from stoker.errors import MissingExtraError
from stoker.sources import hub_client
from stoker.sources.hub_place import hub_place
from stoker.sources.object_store import ObjectClient, ObjectStorage


class HubStorage(ObjectStorage):
    """Files by URL: `hf://datasets/owner/name@commit/path`. Otherwise as `ObjectStorage`.

    Needs `stoker[hub]` (huggingface_hub and obstore).

    Args:
        storage_options: `token` (False for none), `endpoint`, which override `HF_TOKEN`, the token of `hf auth login`
            and `HF_ENDPOINT`; `client_options` and `retry_config` are dicts of obstore's options.

    Raises:
        MissingExtraError: huggingface_hub or obstore is not installed.

    At each use:
        FileNotFoundError: there is no such repository, revision or file.
        PermissionError: the token is missing or wrong, or the repository is gated.
        ObjectStoreError: the Hub cannot be reached, or answers with errors; or `HF_HUB_OFFLINE` is set.
        ValueError: a URL names a branch or a tag rather than a commit.
    """

    client: ClassVar[ObjectClient] = hub_client

    def __init__(self, storage_options: Mapping[str, Any] | None = None) -> None:
        for name in ("huggingface_hub", "obstore"):
            if name not in sys.modules and importlib.util.find_spec(name) is None:
                raise MissingExtraError(
                    f"places of scheme hf need {name}, which is not installed: pip install 'stoker[hub]'"
                )
        super().__init__(storage_options)


class PinnedRepositories:
    """Repositories whose revisions stand for the commits that they had when they were first asked for.

    Args:
        storage_options: see `HubStorage`.

    Attributes:
        roots: the URLs of the repositories at their commits, in the order in which they were asked for.
    """

    def __init__(self, storage_options: Mapping[str, Any] | None) -> None:
        self._options = storage_options
        self._storage: HubStorage | None = None
        self._commits: dict[str, str] = {}
        self.roots: dict[str, None] = {}

    @property
    def storage(self) -> HubStorage:
        """The storage of their files."""
        self._storage = self._storage or HubStorage(self._options)
        return self._storage

    def pinned(self, url: str) -> str:
        """Returns the URL of a place, with the commit in place of the branch or tag.

        Raises: as `HubStorage`.
        """
        place, storage = hub_place(url), self.storage
        if not place.is_pinned:
            if place.root not in self._commits:
                self._commits[place.root] = storage.run(hub_client.commit, place.root)
            place = place._replace(revision=self._commits[place.root])
        self.roots[place.root] = None
        return place.url
