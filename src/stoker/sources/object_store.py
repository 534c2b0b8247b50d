"""Objects of S3, Google Cloud Storage, Azure and web servers, as files that are read by position."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Concatenate, ParamSpec, Protocol, TypeVar

from stoker._core.worker_info import TORCHS, current
from stoker.errors import MissingExtraError
from stoker.sources import object_client
from stoker.sources.clean_interpreter import CleanInterpreters
from stoker.sources.object_client import WHOLE, Options, Range, Request
from stoker.sources.read_ahead import Held
from stoker.sources.storage import File, Version

P = ParamSpec("P")
T = TypeVar("T")

OPENED_AT_ONCE = 64
"""Objects that are opened together: their tails are in memory."""

_first_import_in: int | None = None
"""The process in which this file has imported obstore."""


class ObjectFile:
    """An object, read by position. Thread safe.

    Each read checks that the object is still the one that was opened.

    Attributes:
        version: the size and the ETag; the time of modification where the server gives no ETag.
    """

    def __init__(self, storage: ObjectStorage, url: str, version: Version) -> None:
        self._storage = storage
        self._url = url
        self.version = version

    def read(self, begin: int, length: int) -> bytes:
        """Returns `length` bytes from byte `begin` on; fewer only at the end.

        Raises:
            FileChangedError: the object was changed since it was opened.
        """
        end = min(begin + length, self.version.size)
        return self.read_ranges([(begin, end)])[0] if end > begin else b""

    def read_ranges(self, ranges: Sequence[Range]) -> list[bytes]:
        """Returns ranges, read at once. They are not empty, and lie within the object.

        Raises:
            FileChangedError: the object was changed since it was opened.
        """
        return self._storage.read_ranges(self._url, ranges, self.version)


class ObjectClient(Protocol):
    """The functions that make requests to a store: of `object_client` or `hub_client`."""

    def version(self, options: Options, url: str) -> Version: ...
    def versions(self, options: Options, urls: Sequence[str]) -> list[Version]: ...
    def read(
        self, options: Options, url: str, ranges: Sequence[Range], expected: Version | None = None
    ) -> list[bytes]: ...
    def read_many(self, options: Options, wanted: Sequence[Request]) -> list[bytes]: ...
    def names(self, options: Options, url: str) -> list[str]: ...
    def write(self, options: Options, url: str, data: bytes) -> None: ...


class ObjectStorage:
    """Objects by URL: `s3://bucket/key`, `gs://bucket/key`, `az://container/key`, `https://host/path`.

    Needs `stoker[objects]` (obstore). Picklable, with its options, which workers need; they are in no text of it. In a
    worker, each process has one client for each bucket, made at first use. In any other process requests go through a
    clean interpreter, so that workers can be forked at any time. Thread safe.

    Failed requests are tried again, after pauses that double, with jitter: 8 times, for 120 s. An attempt has 10 s to
    connect, and is given up when nothing has come for 30 s.

    Args:
        storage_options: credentials, `endpoint`, `region`, ... by obstore's names, which override the environment;
            `client_options` and `retry_config` are dicts of obstore's options.

    At each use:
        FileNotFoundError: there is no such object or bucket.
        PermissionError: credentials are missing, wrong or expired.
        ObjectStoreError: the store cannot be reached, or answers with errors.
    """

    client: ClassVar[ObjectClient] = object_client

    def __init__(self, storage_options: Mapping[str, Any] | None = None) -> None:
        import importlib.util

        if "obstore" not in sys.modules and importlib.util.find_spec("obstore") is None:
            raise MissingExtraError(
                "object stores are read by obstore, which is not installed: pip install 'stoker[objects]'"
            )
        self._options = Options(storage_options)
        self._interpreters = CleanInterpreters()

    def open(self, path: str) -> ObjectFile:
        """Returns an object, whose size and version are asked for."""
        return ObjectFile(self, path, self.version(path))

    def open_all(self, paths: Sequence[str], tail: int = 0) -> Iterator[File]:
        """Yields objects in order, asked for together; their last `tail` bytes are read already."""
        for begin in range(0, len(paths), OPENED_AT_ONCE):
            some = paths[begin : begin + OPENED_AT_ONCE]
            versions = self.run(self.client.versions, some)
            ends = [(max(0, version.size - tail), version.size) for version in versions]
            wanted = [
                (path, end, version) for path, end, version in zip(some, ends, versions, strict=True) if end[1] > end[0]
            ]
            tails = iter(self.run(self.client.read_many, wanted) if tail and wanted else [])
            for path, end, version in zip(some, ends, versions, strict=True):
                file = ObjectFile(self, path, version)
                yield Held(file, [(end, next(tails))]) if tail and end[1] > end[0] else file

    def open_known(self, path: str, version: Version) -> ObjectFile:
        """Returns an object of a known version, without a request."""
        return ObjectFile(self, path, version)

    def read_ranges(self, path: str, ranges: Sequence[Range], expected: Version | None = None) -> list[bytes]:
        """Returns ranges of an object, read at once; it has to have the version that is expected, if one is."""
        return self.run(self.client.read, path, ranges, expected)

    def read(self, path: str, begin: int, length: int) -> bytes:
        """Returns `length` bytes of an object from byte `begin` on, in one request; fewer only at its end."""
        return self.run(self.client.read, path, [(begin, begin + length)])[0] if length else b""

    def read_whole(self, path: str) -> bytes:
        """Returns the contents of an object, in one request."""
        return self.run(self.client.read, path, [(0, WHOLE)])[0]

    def version(self, path: str) -> Version:
        """Returns the version of an object."""
        return self.run(self.client.version, path)

    def names(self, path: str) -> list[str]:
        """Returns the keys that begin with the key in a URL, up to its last slash, sorted."""
        return self.run(self.client.names, path)

    def write(self, path: str, data: bytes) -> None:
        """Writes an object, whole or not at all."""
        self.run(self.client.write, path, data)

    def run(self, function: Callable[Concatenate[Options, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns what a function of the client returns, called in this process or in a clean interpreter."""
        if _may_run_here():
            return function(self._options, *args, **kwargs)
        return self._interpreters.call(function, self._options, *args, **kwargs)

    def close(self) -> None:
        """Ends the clean interpreters of this process. The next use starts another."""
        self._interpreters.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def _may_run_here() -> bool:
    """Returns whether this process forks no others that read, and has no obstore that was used before it was forked."""
    global _first_import_in
    if not hasattr(os, "fork"):
        return True
    if not current.is_worker_process and getattr(sys.modules.get(TORCHS), "_worker_info", None) is None:
        return False
    if "obstore" not in sys.modules:
        _first_import_in = os.getpid()
        import obstore  # noqa: F401
    return _first_import_in == os.getpid()
