"""The values of an LMDB as a dataset by index."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from stoker.datasets.base import Dataset
from stoker.datasets.column import TextColumn
from stoker.datasets.combining import absolute
from stoker.errors import DataFileError, MissingExtraError, MissingKeyError, StokerWarning
from stoker.sources.per_process import PerProcess
from stoker.sources.storage import Version
from stoker.sources.urls import check_local

_MOST_DATABASES = 64
"""Named databases of one environment that datasets of a process may read: the library wants a bound when it opens."""
_SIZE_OF_NAMED, _MOST_TESTED = 48, 16
"""Bytes of the value that stands for a named database in the main one, and values of that size that are looked at."""
_LISTED_AT_ONCE = 100_000
"""Keys that are joined at once while all are listed: some megabytes, so that a list of all is never in memory."""


class LMDBDataset(Dataset[Any]):
    """Values of an LMDB, by index: with a length, a true shuffle, exact resume. Needs `stoker[lmdb]`.

    A sample is the value's `bytes`; `transform` decodes it. Pickled values are not unpickled, since that runs code of
    the file: pass `transform=pickle.loads` for files that you wrote yourself.

    The environment is opened for reading, without a lock, so any number of processes may read it, also from a folder
    that cannot be written. Nothing may write to it meanwhile: LMDB reuses the pages of values that are replaced. Each
    process opens it at first use; datasets of one process share an environment. No process inherits or pickles one.
    Thread safe. Memory: the length of all keys, and 8 bytes for each.

    Args:
        path: the folder with `data.mdb`, or a file that was written with `subdir=False`.
        keys: the keys of the samples, as `bytes`, or `str` in UTF-8, in the order of the dataset. None for all keys of
            the database, which are listed once, in LMDB's order.
        database: the name of a database in the environment; None for the main one.
        transform: a function of the value, whose result is the sample.

    Raises:
        FileNotFoundError: there is no such file or folder, or no `data.mdb` in it.
        MissingExtraError: the package `lmdb` is not installed.
        DataFileError: the file is no LMDB, is damaged, or has no such database; or `database` is None, and the main one
            holds nothing but the names of others.
        TypeError: a key is neither `bytes` nor `str`, or `transform` cannot be called.
        ValueError: the path is a URL, or there are no keys.

    At each access:
        IndexError: the index is out of range.
        MissingKeyError: the key is not in the database.
        DataFileError: the file cannot be opened or read.
    """

    stoker_protocol = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        keys: Iterable[bytes | str] | None = None,
        database: str | None = None,
        transform: Callable[[bytes], Any] | None = None,
    ) -> None:
        if transform is not None and not callable(transform):
            raise TypeError(f"transform is a {type(transform).__name__}, expected a function of the value")
        self.path = os.fspath(path)
        check_local(
            self.path,
            "LMDBs, which are mapped into memory,",
            "Or pack it once into tar shards or Parquet (stoker pack), which are read by URL.",
        )
        self.database = database
        self._transform = transform
        self._versions = (_version(self.path),) * 2
        self._process = PerProcess(_EnvironmentOpener(self.path, database))
        self._keys = _column(self._listed() if keys is None else map(_encoded, keys))
        if not len(self._keys):
            raise ValueError(f"there are no keys: the database{_named(database)} of {self.path} is empty, or keys is")
        self._key = self._keys.reader()

    def _listed(self) -> Iterable[bytes]:
        reader = self._process.get()
        try:
            yield from reader.keys() if self.database is not None else reader.keys_of_main()
        finally:
            self._process.close()  # no handle is open while the dataset is only made and sent

    def __len__(self) -> int:
        """Returns the number of keys."""
        return len(self._keys)

    def __getitem__(self, index: int) -> Any:
        """Returns the value of the key at `index`; a negative index counts from the end."""
        key = self._key(absolute(index, len(self)))
        value = self._process.get().value(key)
        return value if self._transform is None else self._transform(value)

    def describe(self, index: int) -> str:
        """Returns the file and the key of the sample at `index`."""
        number = absolute(index, len(self))
        return f"sample {number}: key {self._key(number)!r} of {self.path}"

    def __getstate__(self) -> dict[str, Any]:
        state = {key: value for key, value in self.__dict__.items() if key != "_key"}
        return state | {"_versions": (self._versions[0], _version(self.path))}  # as it was made, and now

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"_versions": (None, None)} | state)  # pickles of earlier versions have none
        self._key = self._keys.reader()


def _encoded(key: Any) -> bytes:
    if isinstance(key, str):
        return key.encode()
    if not isinstance(key, bytes):
        raise TypeError(f"keys should be bytes or str, but got {type(key).__name__}: {key!r:.100}")
    return key


def _column(keys: Iterable[bytes]) -> TextColumn:
    """Returns the keys in one buffer."""
    buffer, lengths, some = bytearray(), [np.zeros(1, np.int64)], list[bytes]()

    def join() -> None:
        buffer.extend(b"".join(some))
        lengths.append(np.fromiter(map(len, some), np.int64, len(some)))
        some.clear()

    for key in keys:
        some.append(key)
        if len(some) == _LISTED_AT_ONCE:
            join()
    join()
    return TextColumn(np.frombuffer(bytes(buffer), np.uint8), np.cumsum(np.concatenate(lengths)), bytes, None)


class _EnvironmentOpener:
    """Opens the environment of a path, or takes the one that this process has open already."""

    def __init__(self, path: str, database: str | None) -> None:
        self._path = path
        self._database = database

    def __call__(self) -> _Reader:
        lmdb = lmdb_module()
        path = os.path.realpath(self._path)
        _check_is_there(self._path)
        place = (os.getpid(), path)
        try:
            # One lock for each process: a fork may copy one that is locked, but the child uses another
            with _opening.setdefault(place[0], threading.Lock()):
                environment = _environments.get(place)
                if environment is None:
                    _close_inherited(path)
                    environment = _environments[place] = _Environment(lmdb, path)
                return _Reader(lmdb, environment, self._path, self._database)
        except lmdb.Error as error:
            raise DataFileError(
                f"{self._path} cannot be read{_named(self._database)}: {error}. Is it an LMDB, written and copied "
                "completely? A database in it is named by database=."
            ) from error


class _Environment:
    """An environment that datasets of this process share. LMDB forbids a process to open a file twice."""

    def __init__(self, lmdb: Any, path: str) -> None:
        self.handle = lmdb.open(
            path,
            subdir=os.path.isdir(path),
            readonly=True,
            lock=False,
            readahead=False,
            create=False,
            max_dbs=_MOST_DATABASES,
        )


_environments: weakref.WeakValueDictionary[tuple[int, str], _Environment] = weakref.WeakValueDictionary()
"""The environments that are open, by process and path."""
_opening: dict[int, threading.Lock] = {}
"""A lock by process: the library refuses the second of two threads that open an environment at once."""


def _close_inherited(path: str) -> None:
    """Closes the environment that this process has inherited by a fork: the library refuses to open a file twice.

    Without a lock, closing unmaps the file in this process and does nothing that the parent could notice.
    """
    for place, environment in list(_environments.items()):
        if place[1] == path and place[0] != os.getpid():
            environment.handle.close()
            _environments.pop(place, None)


class _Reader:
    """Reads a database of an open environment."""

    def __init__(self, lmdb: Any, environment: _Environment, path: str, database: str | None) -> None:
        self._lmdb = lmdb
        self._environment = environment
        self._path = path
        self._name = database
        self._of_thread = threading.local()
        self._database = None if database is None else environment.handle.open_db(database.encode(), create=False)

    def keys(self) -> Iterable[bytes]:
        """Yields all keys, in LMDB's order."""
        with self._environment.handle.begin(db=self._database) as transaction:
            yield from transaction.cursor().iternext(keys=True, values=False)

    def keys_of_main(self) -> Iterable[bytes]:
        """Yields all keys of the main database.

        Raises:
            DataFileError: each is the name of a database. If some are, it warns.
        """
        names: list[str] = []
        count = like_names = tested = 0
        with self._environment.handle.begin(buffers=True) as transaction:
            for data, value in transaction.cursor():
                key = bytes(data)
                count += 1
                if len(value) == _SIZE_OF_NAMED:
                    like_names += 1
                    if tested < _MOST_TESTED:
                        tested += 1
                        names += [key.decode(errors="replace")] * self._is_database(key, transaction)
                yield key
        if not names:
            return
        some = f"{', '.join(map(repr, names[:5]))}{', …' * (len(names) > 5)}"
        if len(names) == tested and like_names == count:
            raise DataFileError(
                f"the main database of {self._path} holds the names of other databases, and no values: {some}. Name "
                f"the one to read: database={names[0]!r}"
            )
        warnings.warn(
            f"among the samples of {self._path} are {some}, which are the names of other databases: their values are "
            "records of the library. Pass the keys to read by keys=, or database= to read one of them.",
            StokerWarning,
            stacklevel=2,
        )

    def _is_database(self, key: bytes, transaction: Any) -> bool:
        try:
            self._environment.handle.open_db(key, txn=transaction, create=False)
        except (self._lmdb.IncompatibleError, self._lmdb.DbsFullError):
            return False
        return True

    def value(self, key: bytes) -> bytes:
        """Returns the value of a key."""
        try:
            value: bytes | None = self._transaction().get(key)
        except self._lmdb.Error as error:
            raise DataFileError(f"the key {key!r:.200} of {self._path} cannot be read: {error}") from error
        if value is None:
            raise MissingKeyError(
                f"the key {key!r:.200} is not in {self._path}{_named(self._name)}: is it a key of another file or "
                "database, or was the file written anew since the dataset was made?"
            )
        return value

    def _transaction(self) -> Any:
        """Returns the transaction of this thread. It stays open, since a new one takes as long as a look-up."""
        mine = getattr(self._of_thread, "transaction", None)
        if mine is None:
            mine = self._of_thread.transaction = self._environment.handle.begin(db=self._database)
        return mine


def _named(database: str | None) -> str:
    return "" if database is None else f" in the database {database!r}"


def _file_of(path: str) -> str:
    return os.path.join(path, "data.mdb") if os.path.isdir(path) else path


def _version(path: str) -> Version | None:
    try:
        status = os.stat(_file_of(path))
    except OSError:  # the first access says so
        return None
    return Version(status.st_size, status.st_mtime_ns)


def _check_is_there(path: str) -> None:
    file = _file_of(path)
    if not os.path.exists(file):
        raise FileNotFoundError(
            f"there is no {file}. An LMDB is a folder with a file data.mdb, or a file written with subdir=False"
        )


def lmdb_module() -> Any:
    """Returns the package lmdb."""
    try:
        import lmdb
    except ImportError as error:
        raise MissingExtraError(
            f"LMDBDataset needs the package lmdb, which cannot be imported ({error}): install the extra stoker[lmdb]."
        ) from error
    return lmdb
