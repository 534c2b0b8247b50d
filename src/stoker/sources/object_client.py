"""Requests to object stores through obstore, whose threads start with the first request of a process.

Functions of this file run in workers, or in a clean interpreter: never in a process that forks workers.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from functools import partial
from random import uniform
from typing import Any, TypeVar

from stoker.errors import FileChangedError, MissingExtraError
from stoker.sources.aws_profile import with_profile
from stoker.sources.per_process import PerProcess
from stoker.sources.storage import (
    GUIDE,
    OTHER_NAMES,
    Version,
    WrongLengthError,
    first_line,
    may_pass,
    meant,
    raise_as_ours,
)
from stoker.sources.urls import ObjectURL, parsed, shown

T = TypeVar("T")
Range = tuple[int, int]
"""The first byte, and the byte behind the last."""
Request = tuple[str, Range, Version | None]
"""The URL of an object, a range, and the version that the object has to have."""

WHOLE = 1 << 62
"""As the end of a range: that of the object."""
AT_ONCE = 16
"""Requests of one call that are under way together."""
MOST_CLIENTS = 256
"""Clients that a process keeps: a signed URL of a web server needs one of its own."""

_BEHIND_THE_END = ("status code: 416", "Wanted range starting at")
"""What obstore says of a range that begins at the end of an object or behind it; Azurite does not answer 416."""
_CLIENT = {"connect_timeout": "10s", "read_timeout": "30s", "timeout": "300s"}
_RETRY = {"max_retries": 8, "retry_timeout": 120}
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    "http": (),
}


class Options:
    """Options of a store. Picklable; its text shows names alone, since values may be secrets.

    Args:
        storage_options: obstore's names, or fsspec's of S3; `client_options` and `retry_config` are dicts of obstore's.

    Attributes:
        hub_token: the token of the Hugging Face Hub; False for none, None for that of the environment.
    """

    def __init__(self, storage_options: Mapping[str, Any] | None) -> None:
        self.hub_token = (storage_options or {}).get("token")
        values = {OTHER_NAMES.get(name, name): value for name, value in (storage_options or {}).items()}
        self.client: dict[str, Any] = {**_CLIENT, **values.pop("client_options", {})}
        self.retry: dict[str, Any] = {**_RETRY, **values.pop("retry_config", {})}
        self.store: dict[str, Any] = values

    def __repr__(self) -> str:
        return f"<options of a store: {', '.join(sorted(self.store)) or 'none'}>"

    def of_web(self, token: str | None) -> Options:
        """Returns the options of a web server, to which requests carry a token if there is one."""
        headers = {} if token is None else {"default_headers": {"authorization": f"Bearer {token}"}}
        return Options({"client_options": {**self.client, **headers}, "retry_config": self.retry})

    @property
    def seconds(self) -> float:
        """Seconds in which a failed request is tried again."""
        value = self.retry["retry_timeout"]
        return value.total_seconds() if isinstance(value, timedelta) else float(value)

    @property
    def first_pause(self) -> float:
        """Seconds before the second attempt."""
        value = self.retry.get("backoff", {}).get("init_backoff", _FIRST_PAUSE)
        return value.total_seconds() if isinstance(value, timedelta) else float(value)

    @property
    def key(self) -> str:
        """Identifies the options in a process."""
        return repr((sorted(self.store.items()), sorted(self.client.items()), sorted(self.retry.items())))


def version(options: Options, url: str) -> Version:
    """Returns the version of an object.

    Raises:
        OSError: it is not there or cannot be read, see `raise_as_ours`.
    """
    obstore, place, store = _reached(options, url)

    def ask() -> Version:
        try:
            return _version(obstore.head(store, place.key))
        except Exception:
            if place.kind != "http":
                raise
        # a signed URL allows one method, GET, and some servers no other
        return _version(obstore.get(store, place.key, options={"range": (0, 1)}).meta)

    return _tried(options, url, ask)


def versions(options: Options, urls: Sequence[str]) -> list[Version]:
    """Returns the versions of objects, asked for together.

    Raises:
        OSError: one is not there or cannot be read, see `raise_as_ours`.
    """
    import obstore

    async def ask(url: str) -> Version:
        place = parsed(url)
        return _version(await obstore.head_async(_store(options, place), place.key))

    outcomes = _together([partial(ask, url) for url in urls])
    return [_settled(url, outcome, partial(version, options, url)) for url, outcome in zip(urls, outcomes, strict=True)]


def read(options: Options, url: str, ranges: Sequence[Range], expected: Version | None = None) -> list[bytes]:
    """Returns ranges of an object, read at once. The last byte of a range may lie behind the object's end.

    Args:
        options: of the store.
        url: of the object.
        ranges: none of them empty or behind the end.
        expected: the version that the object has to have.

    Raises:
        FileChangedError: it has another version.
        OSError: it is not there or cannot be read, see `raise_as_ours`.
    """
    return read_many(options, [(url, one, expected) for one in ranges])


def read_many(options: Options, wanted: Sequence[Request]) -> list[bytes]:
    """Returns ranges of several objects, read together.

    Raises: as `read`.
    """
    is_one = len(wanted) == 1  # which needs no event loop
    outcomes = [_NONE] if is_one else _together([partial(_one_of_several, options, *each) for each in wanted])
    return [
        _settled(each[0], outcome, partial(_one, options, *each))
        for each, outcome in zip(wanted, outcomes, strict=True)
    ]


def names(options: Options, url: str) -> list[str]:
    """Returns the keys that begin with the key in a URL, up to a slash, sorted.

    Raises:
        OSError: the store cannot be listed, see `raise_as_ours`.
    """
    obstore, place, store = _reached(options, url)
    prefix = place.key.rpartition("/")[0]

    def ask() -> list[str]:
        return sorted(entry["path"] for chunk in obstore.list(store, prefix or None) for entry in chunk)

    return _tried(options, url, ask)


def write(options: Options, url: str, data: bytes) -> None:
    """Writes an object, whole or not at all.

    Raises:
        OSError: it cannot be written, see `raise_as_ours`.
    """
    obstore, place, store = _reached(options, url)
    _tried(options, url, lambda: obstore.put(store, place.key, data))


def _one(options: Options, url: str, wanted: Range, expected: Version | None) -> bytes:
    obstore, place, store = _reached(options, url)

    def ask() -> bytes:
        try:
            result = obstore.get(store, place.key, options=_get_options(wanted))
        except Exception as error:
            if expected is None and any(words in str(error) for words in _BEHIND_THE_END):
                return b""
            raise
        return _checked(url, result.meta, result.range, bytes(result.bytes()), wanted, expected)

    return _tried(options, url, ask)


async def _one_of_several(options: Options, url: str, wanted: Range, expected: Version | None) -> bytes:
    import obstore

    place = parsed(url)
    result = await obstore.get_async(_store(options, place), place.key, options=_get_options(wanted))
    data = bytes(await result.bytes_async())
    return _checked(url, result.meta, result.range, data, wanted, expected)


class _NotAskedError(Exception):
    """A request was not made."""


_NONE = _NotAskedError()


def _together(asks: Sequence[Callable[[], Coroutine[Any, Any, T]]]) -> list[T | BaseException]:
    """Returns what requests return or raise, `AT_ONCE` of which are under way together."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        return [_NONE] * len(asks)  # the caller's own loop is at work in this thread

    async def all_of() -> list[T | BaseException]:
        free = asyncio.Semaphore(AT_ONCE)

        async def one(ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
            async with free:
                return await ask()

        return await asyncio.gather(*map(one, asks), return_exceptions=True)

    loop = asyncio.new_event_loop()  # asyncio.run would take away the thread's own
    try:
        return loop.run_until_complete(all_of())
    finally:
        loop.close()


def _settled(url: str, outcome: T | BaseException, ask_again: Callable[[], T]) -> T:
    """Returns the outcome of a request; asks again, alone, if it failed in a way that may pass."""
    if not isinstance(outcome, BaseException):
        return outcome
    if isinstance(outcome, FileChangedError):
        raise outcome
    if isinstance(outcome, _NotAskedError) or may_pass(outcome) or parsed(url).kind == "http":
        return ask_again()
    raise_as_ours(outcome, url, 1, 0.0)


def _get_options(wanted: Range) -> dict[str, Any]:
    return {} if wanted == (0, WHOLE) else {"range": wanted}


def _checked(url: str, meta: Any, got: Range, data: bytes, wanted: Range, expected: Version | None) -> bytes:
    """Returns the data of an answer that is whole."""
    now = _version(meta)
    is_only_size = expected is not None and not expected.tag and not expected.mtime_ns
    if expected is not None and (now.size != expected.size if is_only_size else now != expected):
        raise FileChangedError(
            f"{shown(url)} was changed since it was opened: it has {now.size:,} bytes, and had {expected.size:,}. Make "
            "the dataset anew, and give new data another name."
        )
    if len(data) != min(wanted[1], now.size) - wanted[0] or got[0] != wanted[0]:
        raise WrongLengthError(
            f"bytes {wanted[0]} to {min(wanted[1], now.size)} were asked for, and the answer has {len(data)} bytes"
        )
    return data


def _version(meta: Any) -> Version:
    tag = meta["e_tag"] or meta["version"] or ""
    return Version(meta["size"], 0 if tag else round(meta["last_modified"].timestamp() * 1e9), tag)


_STORES: PerProcess[dict[tuple[str, str, str, str], Any]] = PerProcess(dict, keeps_inherited=True)


def _store(options: Options, place: ObjectURL) -> Any:
    """Returns the client of this process for a bucket."""
    stores = _STORES.get()
    key = (place.kind, place.root, place.account, options.key)
    store = stores.get(key)
    if store is None:
        store = stores[key] = _made(options, place)
        for oldest in list(stores)[: max(0, len(stores) - MOST_CLIENTS)]:
            stores.pop(oldest, None)
    return store


def _reached(options: Options, url: str) -> tuple[Any, ObjectURL, Any]:
    """Returns the module obstore, the place of a URL, and its store."""
    import obstore

    place = parsed(url)
    return obstore, place, _store(options, place)


def _made(options: Options, place: ObjectURL) -> Any:
    try:
        from obstore import exceptions, store
    except ImportError as error:
        raise MissingExtraError(
            "object stores are read by obstore, which is not installed: pip install 'stoker[objects]'"
        ) from error
    client = dict(options.client)
    config = with_vendor_settings(place.kind, options.store, os.environ)
    credentials = with_profile(config, os.environ) if place.kind == "s3" else {}
    endpoints = [value for name, value in config.items() if "endpoint" in name or "url" in name]
    if not endpoints:
        endpoints = list(filter(None, map(os.environ.get, _ENDPOINTS[place.kind])))
    if any(str(one).startswith("http://") for one in (place.root, *endpoints[:1])):
        client.setdefault("allow_http", True)
    retry = {**options.retry, "retry_timeout": timedelta(seconds=options.seconds)}
    common = {"client_options": client, "retry_config": retry}
    if place.account:
        config.setdefault("account_name", place.account)
    try:
        if place.kind == "http":
            return store.HTTPStore(place.root, **common)
        if place.kind == "az":
            return store.AzureStore(place.root, config=config, **common)
        kind = store.S3Store if place.kind == "s3" else store.GCSStore
        return kind(place.root, config=config, **common, **credentials)
    except exceptions.UnknownConfigurationKeyError:
        of_kind: Any = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}[place.kind]
        unknown = [name for name, value in config.items() if not _is_known(of_kind, name, value)]
        raise ValueError(
            f"storage_options has a name that {place.kind} does not know: {', '.join(map(meant, unknown))}. {GUIDE}"
        ) from None
    except exceptions.BaseError as error:
        raise ValueError(
            f"storage_options and environment do not suffice for {place.kind}: {first_line(error).rstrip('.')}. {GUIDE}"
        ) from None


def _is_known(kind: Any, name: str, value: Any) -> bool:
    """Returns whether a kind of store has an option of this name."""
    from obstore import exceptions

    try:
        kind("bucket", config={name: value})
    except exceptions.UnknownConfigurationKeyError:
        return False
    except Exception:  # it is known, and does not suffice alone
        return True
    return True


def _tried(options: Options, url: str, ask: Callable[[], T]) -> T:
    """Returns what `ask` returns, which is called again after a passing failure that obstore does not handle itself.

    obstore repeats requests that were not answered, or with a server's error (5xx). It gives up where an answer breaks
    off, is too short, or says 429: these are repeated here, after pauses that double, with jitter.
    """
    begun = time.monotonic()
    pause, tries = options.first_pause, 0
    while True:
        tries += 1
        try:
            return ask()
        except (FileChangedError, MissingExtraError):
            raise
        except Exception as error:
            left = options.seconds - (time.monotonic() - begun) - pause
            if not may_pass(error) or tries > options.retry["max_retries"] or left < 0:
                raise_as_ours(error, url, tries, time.monotonic() - begun)
        time.sleep(uniform(pause / 2, pause))
        pause = min(2 * pause, _LONGEST_PAUSE)


# Settings of stores under names of their vendors that obstore does not read.


_PARTS = {
    "accountname": "account_name",
    "accountkey": "account_key",
    "blobendpoint": "endpoint",
    "sharedaccesssignature": "sas_token",
}
"""The parts of a connection string of Azure, in lower case."""


def with_vendor_settings(kind: str, options: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Returns the options of a store, with those that the environment has under other names.

    Read are `STORAGE_EMULATOR_HOST` (an emulator of Google's store, without credentials), and
    `AZURE_STORAGE_CONNECTION_STRING`, also as the option `connection_string`. Given options come first.

    Args:
        kind: of the store: "s3", "gs", "az" or "http".
        options: options by obstore's names.
        environment: variables.

    Raises:
        ValueError: a connection string is none. The message does not show it.
    """
    settings = dict(options)
    if kind == "gs" and not {"base_url", "google_base_url"} & settings.keys() and "GOOGLE_BASE_URL" not in environment:
        host = environment.get("STORAGE_EMULATOR_HOST", "")
        if host:
            settings["base_url"] = host if "://" in host else f"http://{host}"
            if not any("service_account" in name or "credentials" in name for name in settings):
                settings.setdefault("skip_signature", True)
    if kind == "az":
        text = settings.pop("connection_string", environment.get("AZURE_STORAGE_CONNECTION_STRING", ""))
        for name, value in connection_string(text).items() if text else ():
            settings.setdefault(name, value)
    return settings


def connection_string(text: str) -> dict[str, str]:
    """Returns the options that a connection string of Azure holds: `AccountName=...;AccountKey=...;...`.

    Raises:
        ValueError: it is none. The message does not show it.
    """
    pairs = [part.partition("=") for part in text.strip().split(";") if part.strip()]
    values = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if values.get("usedevelopmentstorage", "").lower() == "true":
        return {"use_emulator": "true"}
    settings = {ours: values[name] for name, ours in _PARTS.items() if name in values}
    if "account_name" not in settings and "endpoint" not in settings:
        raise ValueError(
            "the connection string of Azure (AZURE_STORAGE_CONNECTION_STRING, or connection_string in storage_options) "
            "has neither AccountName nor BlobEndpoint: copy it anew from the account's page, under access keys"
        )
    if "endpoint" not in settings and values.keys() & {"defaultendpointsprotocol", "endpointsuffix"}:
        scheme = values.get("defaultendpointsprotocol", "https")
        suffix = values.get("endpointsuffix", "core.windows.net")
        settings["endpoint"] = f"{scheme}://{settings['account_name']}.blob.{suffix}"
    return settings
