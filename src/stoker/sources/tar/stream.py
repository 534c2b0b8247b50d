"""Tar shards as a stream."""

from __future__ import annotations

import copy
import operator
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from stoker._core.hashing import bits
from stoker.datasets.combining import shard_of
from stoker.datasets.map import MapDataset
from stoker.datasets.shuffle_buffer import ShuffleDataset
from stoker.datasets.stream import Stream, StreamIterator, count, same_settings
from stoker.errors import DuplicateKeyError, ShardError, StateFormatError, StateMismatchError
from stoker.extend import ShardProgress, State, resume, torchs_part
from stoker.sources.file_stream import PartStream
from stoker.sources.per_process import Once
from stoker.sources.places import Place, places_of
from stoker.sources.read_ahead import ReadAhead, ahead
from stoker.sources.storage import File, Storage
from stoker.sources.storage_of import storage_of
from stoker.sources.tar.decode import Decoder, SampleDecoder
from stoker.sources.tar.foreign_index import check_no_end
from stoker.sources.tar.index import Folder, belongs, existing_index
from stoker.sources.tar.members import SMALL_WINDOW, MemberReader, read_sample, repeated
from stoker.sources.urls import hub_fingerprint, is_remote, shown

PIECES = 256
"""Pieces into which a stream can be shared out at least. Fewer shards than this are cut, each into equal parts."""
REMOTE_PIECES = 32
"""The same for remote shards: without an index, the part of a shard before a piece is read to find its beginning."""


class TarStream(Stream[Any]):
    """Samples of tar shards in the WebDataset layout, in sequence: no index, one shard read after another.

    A sample is a dict, as in `TarDataset`: `__key__`, `__url__`, and an entry for each extension. Without shuffling,
    samples come in the order of the shards and, in a shard, of their members. `TarDataset` shuffles completely, and
    knows its length.

    Workers and ranks read pieces of their own: shards or, if there are fewer than 256, equal parts of shards by bytes.
    So one shard keeps many workers busy; their pieces differ by one at most. To find its part, a worker reads the
    headers of the parts before it, if the shard has no index. Remote shards are cut if there are fewer than 32, so that
    a worker has whole ones if it can, and read in ranges of up to 4 MiB. Under torch's loader, workers share the pieces
    out too.

    The state holds a byte in a shard and a bit for each piece. It can be loaded with any number of workers; with a
    buffer, with the number that saved it. Pass each rank its part: `stream.shard(num_shards=ranks, index=rank)`.
    An error in a shard (truncated, damaged, deleted) is raised once, at its place; the iterator continues with the next
    shard. After a duplicate key or an error of a decoder it continues with the next sample.

    Args:
        shards: a path, a glob pattern (`*.tar`), a brace pattern (`train-{000..127}.tar`), a URL of an object store or
            a web server, or a list of these. URLs are not checked before they are read.
        shuffle: read the pieces in another order in each epoch.
        buffer_size: shuffle samples within a buffer of this size, see `ShuffleDataset`; 0 for none. The buffer holds
            undecoded bytes.
        seed: of the shuffling, any integer.
        decode: as in `TarDataset`.
        transform: a function of the decoded sample, whose result is the sample. Random numbers that it draws are the
            sample's own.
        index_folder: where indexes of shards may lie, as in `TarDataset`.
        storage_options: of object stores: credentials, `endpoint`, ...; see the guide on object storage.
        cache: a folder of the local disk for the data that is read, shared by all processes of the machine; needs
            `cache_size`. See the guide on unreliable storage.
        cache_size: bytes that the cache may take.

    Raises:
        FileNotFoundError: a path or pattern leads to no file.
        ValueError: there are no shards, or `buffer_size` is negative.

    Attributes:
        shards: the paths of the shards, in order.

    While iterating:
        ShardError: a shard is truncated or damaged, or has no samples.
        DuplicateKeyError: two samples have the same key, as far as one worker can see it.
        RecordError: a member cannot be decoded.
    """

    def __init__(
        self,
        shards: Place | Iterable[Place],
        *,
        shuffle: bool = False,
        buffer_size: int = 0,
        seed: int = 0,
        decode: bool | Mapping[str, Decoder] = True,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        index_folder: Folder | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | None = None,
    ) -> None:
        if operator.index(buffer_size) < 0:
            raise ValueError(f"buffer_size is {buffer_size}, expected 0 or more")
        places = places_of(shards, "shards", storage_options)
        self.shards = [shown(path) for path in places]
        self._decoder = SampleDecoder(decode, transform)
        storage = storage_of(places, storage_options, cache, cache_size)
        undecoded = UndecodedTarStream(places, storage, operator.index(seed) if shuffle else None, index_folder)
        self._source: ShuffleDataset[Any] | UndecodedTarStream = (
            ShuffleDataset(undecoded, buffer_size, seed) if buffer_size else undecoded
        )

    @property
    def fingerprint(self) -> str | None:
        """The commits of files on the Hugging Face Hub, with which a state is compared; None for other places."""
        return hub_fingerprint(self.shards)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration, on which the shuffled order depends. A loaded state overrides it."""
        self._source.set_epoch(epoch)

    @property
    def num_shards(self) -> int:
        """The number of pieces into which the stream can be cut."""
        return self._source.num_shards

    def shard(self, num_shards: int, index: int) -> TarStream:
        """Returns every `num_shards`-th piece, from piece `index` on.

        Raises:
            ValueError: there are fewer pieces than `num_shards`, or `index` is not a shard.
        """
        part = copy.copy(self)
        part._source = shard_of(self._source, num_shards, index)
        return part

    def _begin(self, state: State | None) -> StreamIterator[Any]:
        return resume(MapDataset(self._source, self._decoder), state)


class UndecodedTarStream(PartStream[dict[str, Any]]):
    """The samples of shards as bytes.

    Args:
        seed: of the order of the pieces; None for that of the shards.
        index_folder: where indexes may lie.
    """

    def __init__(
        self, shards: list[str], storage: Storage, seed: int | None, index_folder: Folder | None = None
    ) -> None:
        self.shards = shards
        self.index_folder = index_folder
        self.storage = storage
        self.seed = seed
        self.epoch = 0
        self.once = Once()
        self.are_remote = any(map(is_remote, shards))
        self.pieces = -(-(REMOTE_PIECES if self.are_remote else PIECES) // len(shards))  # of each shard
        super().__init__(self.pieces * len(shards))

    def set_epoch(self, epoch: int) -> None:
        self.epoch = operator.index(epoch)

    def place(self, number: int) -> tuple[int, int]:
        """Returns the shard of a piece, and the number of the piece in it.

        All first pieces of remote shards are numbered before all second ones: so a share of every n-th piece has few
        shards with all their pieces, rather than a piece of each.
        """
        if not self.are_remote:
            return divmod(number, self.pieces)
        piece, shard = divmod(number, len(self.shards))
        return shard, piece

    def ordered(self, numbers: Iterable[int], epoch: int) -> deque[int]:
        """Returns pieces in the order in which they are read; those of a remote shard one after the other."""
        if not self.are_remote:
            return deque(numbers if self.seed is None else sorted(numbers, key=bits(self.seed, epoch)))
        if self.seed is None:
            return deque(sorted(numbers, key=self.place))
        draw = bits(self.seed, epoch)
        return deque(sorted(numbers, key=lambda number: (draw(self.place(number)[0]), self.place(number))))

    def _begin(self, state: State | None) -> StreamIterator[dict[str, Any]]:
        numbers = torchs_part(self._numbers)
        return _Undecoded(self, ShardProgress(numbers, self.pieces * len(self.shards), state))


class _Undecoded(StreamIterator[dict[str, Any]]):
    """Reads one piece after another. A piece holds the samples that begin in its share of the shard's bytes."""

    def __init__(self, stream: UndecodedTarStream, progress: ShardProgress) -> None:
        self._stream = stream
        self._progress = progress
        saved = progress.saved
        self._order: State = {"seed": stream.seed}
        self._epoch = stream.epoch if saved is None else count(saved, "epoch")
        same_settings(saved, self._order)
        progress.waiting = stream.ordered(progress.waiting, self._epoch)
        self._begun = {number: _place(state) for number, state in progress.begun.items()}
        self._number: int | None = None  # of the current piece
        self._shard: _OpenShard | None = None
        self._resumed: list[int] | None = None  # the place at which the current piece was resumed
        self._damaged: set[int] = set()
        self._starts: dict[int, list[int]] = {}  # of the pieces of a shard

    def __next__(self) -> dict[str, Any]:
        while self._number is not None or self._next_piece():
            assert self._number is not None
            try:
                sample = self._sample(self._number)
            except DuplicateKeyError:
                raise
            except (OSError, StateMismatchError):
                self._damaged.add(self._stream.place(self._number)[0])
                self._shard = None
                self._finish()
                raise
            if sample is not None:
                return sample
            self._finish()
        raise StopIteration

    def state_dict(self) -> State:
        here = {}
        if self._number is not None:
            shard = self._shard
            is_open = shard is not None and (shard.number, shard.piece) == self._stream.place(self._number)
            if shard is not None and is_open and shard.is_begun:
                here = {self._number: [shard.position, shard.size]}
            elif self._resumed is not None:
                here = {self._number: self._resumed}
        return self._progress.state((here | self._begun).items(), **self._order, epoch=self._epoch)

    def _next_piece(self) -> bool:
        while self._begun or self._progress.waiting:
            self._resumed = None
            if self._begun:
                number = next(iter(self._begun))
                self._resumed = self._begun.pop(number)
            else:
                number = self._progress.waiting.popleft()
            if self._stream.place(number)[0] not in self._damaged:
                self._number = number
                return True
            self._progress.finish(number)
        return False

    def _finish(self) -> None:
        assert self._number is not None
        self._progress.finish(self._number)
        self._number = None

    def _sample(self, number: int) -> dict[str, Any] | None:
        """Returns the next sample of a piece; None at its end."""
        shard, piece = self._stream.place(number)
        if self._shard is None or self._shard.number != shard:
            path, pieces = self._stream.shards[shard], self._stream.pieces
            file = self._stream.storage.open(path)
            if shard not in self._starts:
                self._starts[shard] = _starts_in_index(self._stream, path, file) if pieces > 1 else [0]
            stream, starts = self._stream, self._starts[shard]
            self._shard = _OpenShard(
                *(shard, shown(path), file, pieces, starts),
                lambda at: check_no_end(path, file, stream.storage, stream.index_folder, stream.once),
            )
        if self._shard.piece != piece:
            self._shard.begin(piece, self._resumed, self._last(shard, piece))
        return self._shard.sample()

    def _last(self, shard: int, piece: int) -> int:
        """Returns the last of the pieces that are read on from this one without a jump."""
        if self._stream.are_remote:
            for number in self._progress.waiting:
                if self._stream.place(number) != (shard, piece + 1):
                    break
                piece += 1
        return piece


class _OpenShard:
    """A shard that is read piece by piece.

    Args:
        starts: the bytes at which its pieces begin, from the first on, as far as known; more are added.
        on_no_end: called if the shard has no end mark.

    Attributes:
        piece: the current piece; -1 before the first.
        is_begun: whether a sample of the piece was read, or the piece was resumed.
    """

    def __init__(
        self, number: int, path: str, file: File, pieces: int, starts: list[int], on_no_end: Callable[[int], object]
    ) -> None:
        self.number = number
        self.piece = -1
        self.is_begun = False
        self._path = path
        self._file = file
        self._pieces = pieces
        self._starts = starts
        self._ahead = ahead(file)
        self._on_no_end = on_no_end
        self._reader = MemberReader(self._ahead, path, on_no_end=on_no_end)
        self._at_member = False
        self._keys: set[str] = set()

    @property
    def size(self) -> int:
        """The bytes of the shard."""
        return self._file.version.size

    @property
    def position(self) -> int:
        """The byte at which the next sample begins."""
        return self._reader.begin if self._reader.key is not None else self._reader.position

    def begin(self, piece: int, resumed: list[int] | None, last: int) -> None:
        """Makes `piece` the current one, at its start or where an earlier state stands.

        Args:
            piece: its number in the shard.
            resumed: a byte and the shard's size, from the state.
            last: the last of the pieces that will be read on from this one.
        """
        if resumed is not None and resumed[1] != self.size:
            raise StateMismatchError(
                f"the state stands at byte {resumed[0]} of {self._path}, a shard of {resumed[1]} bytes; now it has "
                f"{self.size}: the shard is another one, or was changed"
            )
        if isinstance(self._ahead, ReadAhead):
            self._ahead.stop = self._limit(last + 1)
        start = self._start(piece) if resumed is None else resumed[0]
        if not self._at_member or self.position != start:
            self._reader.position = start
            self._at_member = True
            try:
                self._reader.advance()
            except ShardError as error:
                if resumed is None:
                    raise
                raise StateMismatchError(
                    f"the state stands at byte {start} of {self._path}, but no member begins there ({error}): the "
                    "shard is another one, or was changed"
                ) from None
            if start == 0 and self._reader.key is None:
                raise ShardError(f"{self._path} has no samples: was it written completely?")
        self.piece, self.is_begun = piece, resumed is not None
        self._keys.clear()

    def sample(self) -> dict[str, Any] | None:
        """Returns the next sample of the piece; None at its end.

        Raises:
            ShardError: the shard is truncated or damaged.
            DuplicateKeyError: two samples have the same key, or two members the same extension.
        """
        key, begin = self._reader.key, self._reader.begin
        if key is None or begin >= self._limit(self.piece + 1):
            if len(self._starts) == self.piece + 1:
                self._starts.append(self.position)
            return None
        self.is_begun = True
        sample = read_sample(self._reader, self._path)
        if key in self._keys:
            raise repeated(key, self._path, begin)
        self._keys.add(key)
        return sample

    def _limit(self, piece: int) -> int:
        return _limit(self._file, piece, self._pieces)

    def _start(self, piece: int) -> int:
        """Returns the byte at which the first sample of a piece begins."""
        if piece < len(self._starts):
            return self._starts[piece]
        reader = MemberReader(self._ahead, self._path, self._starts[-1], window=SMALL_WINDOW, on_no_end=self._on_no_end)
        key: str | None = None
        while reader.advance():
            if reader.key == key:
                continue
            key = reader.key
            while len(self._starts) <= piece and reader.begin >= self._limit(len(self._starts)):
                self._starts.append(reader.begin)
            if piece < len(self._starts):
                return self._starts[piece]
        self._starts += [reader.position] * (self._pieces - len(self._starts))
        return self._starts[piece]


def _limit(file: File, piece: int, pieces: int) -> int:
    """Returns the byte at or behind which the first sample of a piece begins."""
    return file.version.size * piece // pieces


def _starts_in_index(stream: UndecodedTarStream, path: str, file: File) -> list[int]:
    """Returns the bytes at which the pieces of a shard begin, if it has an index; else that of the first alone."""
    existing = existing_index(path, stream.storage, stream.index_folder)
    if existing is None or not belongs(existing[0], file.version):  # a stream needs no index
        return [0]
    index, pieces = existing[0], stream.pieces
    limits = [_limit(file, piece, pieces) for piece in range(1, pieces)]
    places = np.searchsorted(index.offsets[:-1], np.array(limits, np.uint64))
    return [0, *index.offsets[places].tolist()]


def _place(state: Any) -> list[int]:
    try:
        byte, size = map(operator.index, state)
    except (TypeError, ValueError) as error:
        raise StateFormatError(f"a byte and a size of a shard were expected in a state, found {state!r}") from error
    return [byte, size]
