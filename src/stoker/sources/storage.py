"""Files and the stores that hold them: the interface through which sources read, local files, and the errors of
requests.

A `Storage` is a small picklable value; it opens a `File`, which belongs to one process. Sources read by position only,
so threads can share a file. Object stores are `ObjectStorage`, in `object_store.py`.
"""

from __future__ import annotations

import io
import os
import re
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, NoReturn, Protocol, runtime_checkable

from stoker.errors import ObjectStoreError
from stoker.sources.urls import shown, without_secrets


class Version(NamedTuple):
    """The version of a file: if it differs, the file has changed.

    Attributes:
        mtime_ns: of the last modification, in nanoseconds since 1970; 0 if there is a tag.
        tag: an object store's name for the contents (ETag); empty for local files.
    """

    size: int
    mtime_ns: int
    tag: str = ""


class File(Protocol):
    """An open file, read by position. Thread safe. Closed when the last reference to it is dropped."""

    @property
    def version(self) -> Version:
        """The version when the file was opened."""

    def read(self, begin: int, length: int) -> bytes:
        """Returns `length` bytes from byte `begin` on; fewer only at the end of the file."""


class Storage(Protocol):
    """A store of files. Picklable; holds nothing open."""

    def open(self, path: str) -> File:
        """Opens a file for reading."""

    def read(self, path: str, begin: int, length: int) -> bytes:
        """Returns `length` bytes of a file from byte `begin` on; fewer only at its end."""


@runtime_checkable
class OpensKnown(Storage, Protocol):
    """A store that need not be asked when a file is opened whose version is known."""

    def open_known(self, path: str, version: Version) -> File:
        """Returns a file of this version, without a request. Reads raise `FileChangedError` if it has another one."""


@runtime_checkable
class OpensTogether(Storage, Protocol):
    """A store of which files are opened together more quickly than one by one."""

    def open_all(self, paths: Sequence[str], tail: int = 0) -> Iterator[File]:
        """Yields files in order. Their last `tail` bytes may be read already."""


def opened_all(storage: Storage, paths: Sequence[str], tail: int = 0) -> Iterator[File]:
    """Yields files of a store in order.

    Args:
        tail: the last bytes of each file that will be read at once.
    """
    return storage.open_all(paths, tail) if isinstance(storage, OpensTogether) else map(storage.open, paths)


def opened(storage: Storage, path: str, version: Version | None) -> File:
    """Opens a file of a store, whose version is known if it is given: it may have changed since.

    Raises:
        OSError: there is no such file, or it cannot be read.
    """
    if version is not None and isinstance(storage, OpensKnown):
        return storage.open_known(path, version)
    return storage.open(path)


class LocalFile:
    """A regular file of this machine."""

    def __init__(self, path: str) -> None:
        self._descriptor = -1
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a regular file, so it cannot be read by position")
        self.version = Version(status.st_size, status.st_mtime_ns)

    def read(self, begin: int, length: int) -> bytes:
        data = os.pread(self._descriptor, length, begin)
        while len(data) < length and (more := os.pread(self._descriptor, length - len(data), begin + len(data))):
            data += more
        return data

    def __del__(
        self, close: Callable[[int], None] = os.close
    ) -> None:  # module globals may be None at interpreter exit
        if self._descriptor >= 0:
            close(self._descriptor)


class LocalStorage:
    """The files of this machine, by path."""

    def open(self, path: str) -> LocalFile:
        return LocalFile(path)

    def read(self, path: str, begin: int, length: int) -> bytes:
        return LocalFile(path).read(begin, length)


# A seekable Python file over a store's file, for libraries that need random access.


BLOCK = 64 << 10
"""Bytes that are read at least."""
LARGEST = 4 << 20
"""Bytes that are read at once, at most, where it is read from front to back."""
HELD = 32 << 20
"""Bytes that are kept."""


class FileObject(io.RawIOBase):
    """A file of a store, open for reading. For one reader at a time.

    Blocks are kept, those used last. A read that goes on where blocks are held fetches more, up to 4 MiB at once.
    """

    def __init__(self, file: File) -> None:
        self._file = file
        self.size = file.version.size
        self._position = 0
        self._ahead = BLOCK
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fills a buffer; less of it only at the end of the file.

        Raises:
            OSError: the file was changed or cannot be read.
        """
        begin = self._position
        end = min(begin + len(buffer), self.size)
        if end <= begin:
            return 0
        first, last = begin // BLOCK, (end - 1) // BLOCK
        self._fetch(first, last)
        for number in range(first, last + 1):
            block = self._blocks[number]
            at = number * BLOCK
            start, stop = max(begin, at), min(end, at + BLOCK)
            buffer[start - begin : stop - begin] = block[start - at : stop - at]
            self._blocks.move_to_end(number)
        while len(self._blocks) * BLOCK > HELD and len(self._blocks) > last + 1 - first:
            self._blocks.popitem(last=False)
        self._position = end
        return end - begin

    def _fetch(self, first: int, last: int) -> None:
        """Reads the blocks that are not held, those between the first and the last of them at once."""
        missing = [number for number in range(first, last + 1) if number not in self._blocks]
        if not missing:
            return
        first, last = missing[0], missing[-1]
        self._ahead = min(2 * self._ahead, LARGEST) if first - 1 in self._blocks else BLOCK
        begin = first * BLOCK
        length = max((last + 1) * BLOCK - begin, self._ahead)
        data = self._file.read(begin, min(length, self.size - begin))
        for at in range(0, len(data), BLOCK):
            self._blocks[first + at // BLOCK] = data[at : at + BLOCK]


# The error of Python or Stoker for a failed request, and whether a retry may succeed.


_STATUS = re.compile(r"status code: (\d{3})")
_RETRIES = re.compile(r"after (\d+) retries")
_ANSWER = re.compile(r"status code: \d{3}[ \w]*")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}


class WrongLengthError(Exception):
    """An answer holds more or fewer bytes than were asked for."""


def may_pass(error: BaseException) -> bool:
    """Returns whether a request that failed so may succeed when it is made again, and obstore has not done so."""
    if isinstance(error, WrongLengthError):
        return True
    text = first_line(error)
    if type(error).__name__ not in ("GenericError", "JoinError") or _RETRIES.search(text) or "builder error" in text:
        return False
    status = _STATUS.search(text)
    return "NotPartial" not in str(error) if status is None else status[1] in ("408", "429")


def raise_as_ours(error: BaseException, url: str, tries: int, seconds: float) -> NoReturn:
    """Raises the error of Python or Stoker for one of obstore.

    Raises:
        PermissionError: credentials are missing, wrong or expired, or do not allow it.
        ObjectStoreError: the store cannot be reached, or answers with errors.
    """
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        raise error
    if isinstance(error, ValueError):
        raise ValueError(f"{shown(url)}: {first_line(error)}") from None
    name, text, place = type(error).__name__, first_line(error), shown(url)
    match = _STATUS.search(text)
    status = match[1] if match else ""
    code = (_CODE.search(str(error)) or [None, ""])[1]
    if isinstance(error, FileNotFoundError) or code == "NoSuchBucket" or status == "404":
        raise FileNotFoundError(f"{place}: there is no such bucket or object (it says {code or status})") from None
    is_on_the_web = url.startswith(("http://", "https://"))  # of whose servers obstore asks for no credentials
    if not is_on_the_web and ("169.254.169.254" in text or "metadata.google" in text):
        raise PermissionError(
            f"{place}: no credentials were found, neither in the environment nor in storage_options, and this machine "
            "has no service that gives them. For a public bucket pass storage_options={'skip_signature': True}."
        ) from None
    if name in ("PermissionDeniedError", "UnauthenticatedError") or status in ("401", "403") or code in _EXPIRED:
        why = "the credentials have expired" if code in _EXPIRED else f"access was refused ({code or status or name})"
        raise PermissionError(
            f"{place}: {why}. Credentials come from the environment (AWS_ACCESS_KEY_ID, "
            "GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME, ...) or storage_options; a signed URL is "
            "valid for a time."
        ) from None
    repeated = _RETRIES.search(text)
    tries += int(repeated[1]) if repeated else 0
    hint = (
        "The server does not answer ranges of bytes, by which sources read: copy the files to another one."
        if "NotPartial" in str(error)
        else "Is the endpoint right, and can this machine reach it? More time and tries: storage_options="
        "{'retry_config': {'max_retries': 20, 'retry_timeout': 600}}."
    )
    raise ObjectStoreError(
        f"{place} cannot be reached: {without_secrets(text)} (tried {tries} times in {seconds:.1f} s"
        f"{', it says ' + code if code else ''}). {hint}"
    ) from None


def first_line(error: BaseException) -> str:
    """Returns what obstore says, without the answer's body and its own state, which may hold keys."""
    text = str(error).partition("\n")[0]
    answer = _ANSWER.search(text)
    return (text if answer is None else text[: answer.end()]).strip()


# Names of options.


OTHER_NAMES = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "endpoint_url": "endpoint",
    "anon": "skip_signature",
}
"""Names of fsspec for options of S3."""
_NAMES = (
    *("access_key_id", "secret_access_key", "session_token", "region", "endpoint", "bucket", "skip_signature"),
    *("account_name", "account_key", "sas_token", "connection_string", "base_url", "service_account"),
    *("service_account_key", "virtual_hosted_style_request", "client_options", "retry_config"),
)
"""Options that are given most often."""
GUIDE = 'The guide "Object storage and web servers" has the names.'


def meant(unknown: str) -> str:
    """Returns an unknown option as it was written, with the closest known one."""
    import difflib

    written = next((theirs for theirs, ours in OTHER_NAMES.items() if ours == unknown), unknown)
    closest = difflib.get_close_matches(written, [*_NAMES, *OTHER_NAMES], 1)
    return f"{written} (did you mean {closest[0]}?)" if closest and closest[0] != written else written
