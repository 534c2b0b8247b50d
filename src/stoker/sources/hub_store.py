"""Files of repositories of the Hugging Face Hub, read by position, and the requests to the Hub."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import uniform
from typing import Any, ClassVar, NoReturn, TypeVar
from urllib.parse import quote, urlsplit

from stoker.errors import FileChangedError, MissingExtraError, ObjectStoreError
from stoker.sources import object_client
from stoker.sources.object_client import AT_ONCE, Options, Range, Request
from stoker.sources.object_store import ObjectClient, ObjectStorage
from stoker.sources.per_process import PerProcess
from stoker.sources.storage import Version, first_line
from stoker.sources.urls import HubPlace, hub_place, shown, without_secrets


class HubStorage(ObjectStorage):
    """Files by URL: `hf://datasets/owner/name@commit/path`. Otherwise as `ObjectStorage`.

    Needs `stoker[hub]` (huggingface_hub and obstore).

    Args:
        storage_options: `token` (False for none), `endpoint`, which override `HF_TOKEN`, the token of `hf auth login`
            and `HF_ENDPOINT`; `client_options` and `retry_config` are dicts of obstore's options.

    At each use:
        FileNotFoundError: there is no such repository, revision or file.
        PermissionError: the token is missing or wrong, or the repository is gated.
        ObjectStoreError: the Hub cannot be reached, or answers with errors; or `HF_HUB_OFFLINE` is set.
        ValueError: a URL names a branch or a tag rather than a commit.
    """

    client: ClassVar[ObjectClient] = sys.modules[__name__]

    def __init__(self, storage_options: Mapping[str, Any] | None = None) -> None:
        for name in ("huggingface_hub", "obstore"):
            if name not in sys.modules and importlib.util.find_spec(name) is None:
                raise MissingExtraError(
                    f"places of scheme hf need {name}, which is not installed: pip install 'stoker[hub]'"
                )
        super().__init__(storage_options)


class PinnedRepositories:
    """Repositories whose revisions stand for the commits that they had when they were first asked for.

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
                self._commits[place.root] = storage.run(commit, place.root)
            place = place._replace(revision=self._commits[place.root])
        self.roots[place.root] = None
        return place.url


# Requests to the Hub: `huggingface_hub` finds files, and obstore reads them. The Hub redirects a request to another
# server, with a signed address that is valid for about an hour: it is asked once for each file and process, and again
# when the address is refused. The token is sent to the Hub alone. These functions run in workers, or in a clean
# interpreter, as those of `object_client`.


T = TypeVar("T")

MOST_ADDRESSES = 4096
"""Addresses of files that a process keeps."""
_TIMEOUT = 30
_LONGEST_PAUSE = 10.0
_PASSING = {408, 429, 500, 502, 503, 504}
_OF_CONNECTIONS = {"httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3"}
"""Libraries of which `huggingface_hub` raises errors of a connection."""
_ON = {"1", "ON", "YES", "TRUE"}

_ADDRESSES: PerProcess[dict[tuple[str, str], str]] = PerProcess(dict)


def commit(options: Options, url: str) -> str:
    """Returns the commit that a revision stands for now.

    Raises:
        OSError: there is no such repository or revision, or it cannot be read, see `_raise_as_ours`.
    """
    place = hub_place(url)
    return str(_asked(options, url, lambda: _api(options, place, "revision").json()["sha"]))


def names(options: Options, url: str) -> list[str]:
    """Returns the paths of the files below the folder in a URL, sorted.

    Raises:
        OSError: the repository cannot be listed, see `_raise_as_ours`.
    """
    place = hub_place(url)
    folder = place.path.rpartition("/")[0]
    paths: list[str] = []
    query = "?recursive=true&expand=false"
    while True:
        try:
            answer = _asked(options, url, partial(_api, options, place, "tree", quote(folder), query))
        except FileNotFoundError:
            if folder and not paths:  # a pattern of a folder that is not there
                return []
            raise
        paths += [entry["path"] for entry in answer.json() if entry["type"] == "file"]
        if "next" not in answer.links:
            return sorted(paths)
        query = "?" + urlsplit(answer.links["next"]["url"]).query


def version(options: Options, url: str) -> Version:
    """Returns the version of a file: its size, and the hash of its contents.

    Raises:
        OSError: it is not there or cannot be read, see `_raise_as_ours`.
    """
    return versions(options, [url])[0]


def versions(options: Options, urls: Sequence[str]) -> list[Version]:
    """Returns the versions of files, asked for together.

    Raises: as `version`.
    """
    places = [_pinned(url) for url in urls]
    by_root: dict[str, list[HubPlace]] = {}
    for place in places:
        by_root.setdefault(place.root, []).append(place)
    by_url: dict[str, Version] = {}
    for root, some in by_root.items():
        wanted = {"paths": [place.path for place in some], "expand": False}
        answer = _asked(options, some[0].url, partial(_api, options, some[0], "paths-info", data=wanted))
        for entry in answer.json():
            if entry["type"] == "file":
                tag = (entry.get("lfs") or entry)["oid"]
                by_url[root + entry["path"]] = Version(entry["size"], 0, tag)
    for place in places:
        if place.url not in by_url:
            raise FileNotFoundError(f"{place.url}: there is no such file in the repository")
    return [by_url[place.url] for place in places]


def read(options: Options, url: str, ranges: Sequence[Range], expected: Version | None = None) -> list[bytes]:
    """Returns ranges of a file, read at once: as `object_client.read`."""
    return read_many(options, [(url, one, expected) for one in ranges])


def read_many(options: Options, wanted: Sequence[Request]) -> list[bytes]:
    """Returns ranges of several files, read together: as `object_client.read_many`."""
    urls = list(dict.fromkeys(url for url, _, _ in wanted))
    try:
        return _read_at(options, wanted, _addresses_of(options, urls))
    except PermissionError:  # signatures of addresses expire
        for url in urls:
            _ADDRESSES.get().pop((options.key, url), None)
    return _read_at(options, wanted, _addresses_of(options, urls))


def write(options: Options, url: str, data: bytes) -> None:
    """Refuses: a repository is written by commits.

    Raises:
        PermissionError: always.
    """
    raise PermissionError(
        f"{url} cannot be written: places of scheme hf are read only. For indexes pass index_folder=; else write to a "
        "local folder, and upload that with huggingface_hub."
    )


def _read_at(options: Options, wanted: Sequence[Request], addresses: dict[str, str]) -> list[bytes]:
    """Returns ranges of files that lie at these addresses."""
    endpoint, parts = _endpoint(options), [b""] * len(wanted)
    for on_hub in (False, True):  # the token is for the Hub alone
        numbers = [
            number
            for number, (url, _, _) in enumerate(wanted)
            if (_origin(addresses[url]) == _origin(endpoint)) is on_hub
        ]
        if not numbers:
            continue
        requests: list[Request] = [
            (addresses[url], span, None if expected is None else Version(expected.size, 0))
            for url, span, expected in (wanted[number] for number in numbers)
        ]
        try:
            data = object_client.read_many(options.of_web(_token(options) if on_hub else None), requests)
        except (FileNotFoundError, FileChangedError, ObjectStoreError) as error:
            raise type(error)(_told(error, addresses)) from None
        except PermissionError:
            raise PermissionError(
                f"{shown(wanted[numbers[0]][0])}: access was refused where the Hub says that the file lies "
                f"({shown(requests[0][0])})"
            ) from None
        for number, one in zip(numbers, data, strict=True):
            parts[number] = one
    return parts


def _told(error: OSError, addresses: dict[str, str]) -> str:
    """Returns the message of an error, with the places that the user knows."""
    text = str(error)
    for url, address in addresses.items():
        text = text.replace(shown(address), url)
    return text


def _addresses_of(options: Options, urls: Sequence[str]) -> dict[str, str]:
    """Returns where files lie; those that are not known are asked for together."""
    known = _ADDRESSES.get()
    addresses = {url: known.get((options.key, url)) for url in urls}
    missing = [url for url, address in addresses.items() if address is None]
    if len(missing) == 1:
        fresh = [_address(options, missing[0])]
    else:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            fresh = list(pool.map(lambda url: _address(options, url), missing)) if missing else []
    for url, address in zip(missing, fresh, strict=True):
        addresses[url] = known[(options.key, url)] = address
    for oldest in list(known)[: max(0, len(known) - MOST_ADDRESSES)]:
        known.pop(oldest, None)
    return {url: address for url, address in addresses.items() if address is not None}


def _address(options: Options, url: str) -> str:
    """Returns the URL to which the Hub redirects requests for a file."""
    place = _pinned(url)

    def ask() -> str:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        at_hub = hf_hub_url(
            place.repository, place.path, repo_type=place.kind, revision=place.revision, endpoint=_endpoint(options)
        )
        return str(get_hf_file_metadata(at_hub, token=_token(options) or False, timeout=_TIMEOUT).location)

    return _asked(options, url, ask)


def _api(options: Options, place: HubPlace, what: str, path: str = "", query: str = "", data: Any = None) -> Any:
    """Returns the answer of the Hub's API about a revision. The Hub has 30 s to answer."""
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    url = f"{_endpoint(options)}/api/{place.kind}s/{place.repository}/{what}/{quote(place.revision, safe='')}"
    url += (f"/{path}" if path else "") + query
    headers, session = build_hf_headers(token=_token(options) or False), get_session()
    if data is None:
        answer = session.get(url, headers=headers, timeout=_TIMEOUT)
    else:
        answer = session.post(url, headers=headers, timeout=_TIMEOUT, data=data)
    hf_raise_for_status(answer)
    return answer


def _asked(options: Options, url: str, ask: Callable[[], T]) -> T:
    """Returns the answer to a request to the Hub; repeats it after a failure that may pass, as `object_client` does.

    Raises: as `_raise_as_ours`.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in _ON:
        raise ObjectStoreError(
            f"{url} cannot be read: the environment has HF_HUB_OFFLINE set, and places of scheme hf are read from the "
            "Hub. Unset it; or download the files while you are online (hf download), and name their local paths."
        )
    begun, pause, tries = time.monotonic(), options.first_pause, 0
    while True:
        tries += 1
        try:
            return ask()
        except ImportError as error:
            raise MissingExtraError(
                f"places of scheme hf need huggingface_hub, which cannot be imported ({error}): pip install "
                "'stoker[hub]'"
            ) from None
        except Exception as error:
            left = options.seconds - (time.monotonic() - begun) - pause
            if not _may_pass(error) or tries > options.retry["max_retries"] or left < 0:
                _raise_as_ours(error, url, _endpoint(options), tries, time.monotonic() - begun)
        time.sleep(uniform(pause / 2, pause))
        pause = min(2 * pause, _LONGEST_PAUSE)


def _may_pass(error: Exception) -> bool:
    status = _status(error)
    return status in _PASSING if status else _is_of_connection(error)


def _is_of_connection(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in _OF_CONNECTIONS or isinstance(error, ConnectionError)


def _status(error: Exception) -> int:
    """Returns the status of the Hub's answer; 0 if there was none."""
    return int(getattr(getattr(error, "response", None), "status_code", 0) or 0)


def _raise_as_ours(error: Exception, url: str, endpoint: str, tries: int, seconds: float) -> NoReturn:
    """Raises the error of Python or Stoker for one of `huggingface_hub`.

    Raises:
        FileNotFoundError: there is no such repository, revision or file; or the repository is private, which the Hub
            does not tell.
    """
    status, name = _status(error), type(error).__name__
    how = "The token comes from HF_TOKEN, `hf auth login` or storage_options={'token': ...}"
    if name == "GatedRepoError":
        raise PermissionError(
            f"{url}: access was refused ({status}): the repository is gated. Accept its conditions on its page, and "
            f"give the token of that account. {how}."
        ) from None
    if name == "RepositoryNotFoundError":
        raise FileNotFoundError(
            f"{url}: there is no such repository, or it is private and the token does not allow it ({status}). {how}."
        ) from None
    if name == "RevisionNotFoundError":
        raise FileNotFoundError(f"{url}: the repository has no such revision") from None
    if status == 404:
        raise FileNotFoundError(f"{url}: there is no such file in the repository") from None
    if status in (401, 403):
        raise PermissionError(f"{url}: access was refused ({status}). {how}.") from None
    if not status and not _is_of_connection(error) and not isinstance(error, OSError):
        raise ValueError(f"{url}: {without_secrets(first_line(error))}") from None
    reason = f"it answers {status}" if status else without_secrets(first_line(error)) or name
    raise ObjectStoreError(
        f"{url} cannot be read from the Hub at {shown(endpoint)}: {reason} (tried {tries} times in {seconds:.1f} s). "
        "Is HF_ENDPOINT right, and can this machine reach it? More time and tries: storage_options={'retry_config': "
        "{'max_retries': 20, 'retry_timeout': 600}}."
    ) from None


def _pinned(url: str) -> HubPlace:
    place = hub_place(url)
    if not place.is_pinned:
        raise ValueError(
            f"{url} names no commit, so two workers could read different files: write "
            f"{place._replace(revision='COMMIT').root}..., with the 40 digits of the commit"
        )
    return place


def _endpoint(options: Options) -> str:
    endpoint = options.store.get("endpoint") or os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    return str(endpoint).rstrip("/")


def _token(options: Options) -> str | None:
    """Returns the token that is given, else that of the environment or of `hf auth login`."""
    token = options.hub_token
    if token is None or token is True:  # as in huggingface_hub
        from huggingface_hub import get_token

        token = get_token()
    return str(token) if token else None


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)
