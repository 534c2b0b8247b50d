"""A Zarr array in an object store, as the package zarr reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable

from stoker.errors import MissingExtraError
from stoker.sources.arrays.stored import FileContents
from stoker.sources.arrays.zarr_metadata import changed, url_below, version_of
from stoker.sources.storage import Storage, opened

try:
    from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
    from zarr.core.buffer import Buffer, BufferPrototype
except ImportError as error:
    raise MissingExtraError(
        f"a Zarr folder needs the package zarr, which cannot be imported ({error}): install the extra stoker[zarr]."
    ) from error


class StoredZarr:
    """The folder of an array in a store.

    Args:
        file: the array, or the group that holds it.
        key: of the array in the group; "" for the array itself.

    Raises:
        FileChangedError: it was changed since the dataset was made.
    """

    def __init__(self, file: FileContents, key: str) -> None:
        assert file.storage is not None
        self._file = file
        self._storage = file.storage
        self._metadata = url_below(file.place, file.versioned.rpartition("/")[2])
        self.name = f"{file.path}/{key}" if key else file.path
        self.zarr_format = version_of(file.versioned)
        self._check_version()
        self.store = _ObjectsBelow(url_below(file.place, key), file.storage, self._check_version)

    def check(self) -> None:
        """Does nothing: where a chunk is missing, the read itself asks whether the array is another one now."""

    def _check_version(self) -> None:
        try:
            version = self._storage.open(self._metadata).version
        except FileNotFoundError as error:
            raise changed(self._file.versioned) from error
        if version != self._file.version:
            raise changed(self._file.versioned)


class _ObjectsBelow(Store):  # type: ignore[misc, unused-ignore]
    """The objects of a folder, to read. Requests are made in the calling thread, one after the other.

    Args:
        is_missing: called when there is no such object: chunks of an array that was removed would be fill values.
    """

    def __init__(self, place: str, storage: Storage, is_missing: Callable[[], None]) -> None:
        super().__init__(read_only=True)
        self._place = place
        self._storage = storage
        self._is_missing = is_missing

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        try:
            return prototype.buffer.from_bytes(self._bytes(url_below(self._place, key), byte_range))
        except FileNotFoundError:
            self._is_missing()
            return None

    def _bytes(self, url: str, wanted: ByteRequest | None) -> bytes:
        if isinstance(wanted, RangeByteRequest):
            return self._storage.read(url, wanted.start, wanted.end - wanted.start)
        if wanted is None and (whole := getattr(self._storage, "read_whole", None)) is not None:
            data: bytes = whole(url)
            return data
        file = opened(self._storage, url, None)
        size = file.version.size
        begin = 0
        if isinstance(wanted, OffsetByteRequest):
            begin = wanted.offset
        elif isinstance(wanted, SuffixByteRequest):
            begin = max(0, size - wanted.suffix)
        return file.read(begin, size - begin)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        return [await self.get(key, prototype, wanted) for key, wanted in key_ranges]

    async def exists(self, key: str) -> bool:
        try:
            self._storage.open(url_below(self._place, key))
        except FileNotFoundError:
            return False
        return True

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    supports_writes = False
    supports_partial_writes = False
    supports_deletes = False
    supports_listing = False

    async def set(self, key: str, value: Buffer) -> None:
        raise NotImplementedError

    async def set_partial_values(self, key_start_values: Iterable[tuple[str, int, bytes]]) -> None:
        raise NotImplementedError  # abstract in the first versions 3 of the package

    async def delete(self, key: str) -> None:
        raise NotImplementedError

    def list(self) -> AsyncIterator[str]:
        raise NotImplementedError

    def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        raise NotImplementedError

    def list_dir(self, prefix: str) -> AsyncIterator[str]:
        raise NotImplementedError
