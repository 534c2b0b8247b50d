"""The quarantine file: a line of JSON for each bad sample. Written by the trainer while it trains, read afterwards."""

from __future__ import annotations

import bisect
import errno
import json
import os
import stat
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from stoker._core.machine import reserve
from stoker.datasets.subset import Subset
from stoker.errors import QuarantineError
from stoker.events import FaultRecord
from stoker.loader._accounting.ledger import class_of, on_one_line, plain

Key = int | str


@dataclass(frozen=True)
class QuarantineRecord:
    """One line: a sample that was not delivered, and the reason.

    Attributes:
        index: the sample's index, or its `repr` if it is neither a number nor a text; None in a stream.
        kind: "exception", "death" (its worker died of it), "stall", or "skip" (the dataset raised `SkipSample`).
        outcome: "raised", "skipped" or "replaced".
        exception: class and text of the exception, or the reason to skip.
        traceback: of the exception.
        description: result of the dataset's `describe(index)`.
        replacement: index of the sample that replaced it.
        time: of the failure, ISO 8601 in UTC.
        epoch, batch, position: in the run, and in the order of its epoch.
        worker, rank: of the failure.
    """

    index: Key | None
    kind: str
    outcome: str | None = None
    exception: str | None = None
    traceback: str | None = None
    description: str | None = None
    replacement: Key | None = None
    time: str | None = None
    epoch: int | None = None
    batch: int | None = None
    position: int | None = None
    worker: int | None = None
    rank: int | None = None


_FIELDS = tuple(QuarantineRecord.__annotations__)


class QuarantineFile:
    """Appends a line for each fault. Several ranks may share a file: each line is one write.

    For the process that opened it: in a forked one nothing is written. Ends with `close()`, garbage, or the program.

    Args:
        path: the file. It is begun if there is none; what is there stays.

    Raises:
        QuarantineError: it cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        # To be read as well: whether it ends within a line. Python has it closed at exec
        # Waiting for the reader of a pipe could take for ever: a full pipe counts as a full disk
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
        reserve.occupy()
        try:
            self._descriptor = os.open(self.path, flags, 0o666)
        except (OSError, ValueError) as error:  # ValueError: no name that a file can have
            why = getattr(error, "strerror", None) or error
            raise QuarantineError(
                f"quarantine={self.path!r} cannot be opened for writing: {why}. {_advice(error)}"
            ) from error
        self._aside: deque[bytes] = deque()  # lines that could not be written yet
        self._owner = os.getpid()
        self._end = weakref.finalize(self, _end, self._descriptor, self._aside, self._owner)

    def write(self, fault: FaultRecord) -> OSError | None:
        """Writes a fault's line, and earlier lines that could not be written.

        Returns:
            The reason for a failed write: the line is kept, and tried again with the next one. None on success.
        """
        if not self._end.alive or os.getpid() != self._owner:
            return None
        self._aside.append(line_of(fault))
        return _append(self._descriptor, self._aside)

    def close(self) -> OSError | None:
        """Writes the remaining lines if possible, and closes the file. Idempotent.

        Returns:
            The reason for lost lines, or None.
        """
        if os.getpid() != self._owner:
            return None
        error: OSError | None = self._end()
        return error


def _advice(error: OSError | ValueError) -> str:
    return {
        errno.ENOENT: "Its folder does not exist: make it first.",
        errno.ENOTDIR: "A part of its path is a file, not a folder.",
        errno.EISDIR: "It is a folder: name a file in it.",
        errno.EACCES: "Name a file that this user may read and write.",
        errno.EROFS: "Name a file on a disk that can be written.",
    }.get(getattr(error, "errno", None) or 0, "Name a file on a disk that can be written, or leave quarantine= out.")


def _end(descriptor: int, aside: deque[bytes], owner: int) -> OSError | None:
    if os.getpid() != owner:  # in a fork the number may long be another file's
        return None
    try:
        return _append(descriptor, aside)
    finally:
        os.close(descriptor)


def _append(descriptor: int, lines: deque[bytes]) -> OSError | None:
    """Writes the lines and removes those written from the queue, also when the disk fills up half-way."""
    for _ in range(2):  # a short write has no error code: the second write raises it, or succeeds
        if not lines:
            return None
        try:
            text = (b"\n" if _is_torn(descriptor) else b"") + b"".join(lines)
            written = os.write(descriptor, text) - text.startswith(b"\n")
        except OSError as error:
            return error
        while lines and written >= len(lines[0]):
            written -= len(lines.popleft())
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if lines else None


def _is_torn(descriptor: int) -> bool:
    """Returns whether the file ends within a line: a writer was killed, or the disk was full."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        return False
    os.lseek(descriptor, -1, os.SEEK_END)  # appends are not affected
    return os.read(descriptor, 1) != b"\n"


def line_of(fault: FaultRecord) -> bytes:
    """Returns a fault as a line of JSON, for any text in it."""
    known = plain(fault)
    text = json.dumps({name: known[name] for name in _FIELDS if name in known}, ensure_ascii=False, default=repr)
    return text.encode("utf-8", "backslashreplace") + b"\n"  # half a surrogate pair becomes JSON's own escape for it


def quarantine(path: str | os.PathLike[str]) -> Quarantine:
    """Reads a file that `DataLoader(quarantine=path)` has written, or is writing.

    Raises:
        FileNotFoundError: there is none. A loader makes it when its first epoch begins.
    """
    records: dict[tuple[Any, ...], QuarantineRecord] = {}
    damaged = 0
    for line in Path(path).read_bytes().split(b"\n"):
        if not line.strip():
            continue
        record = _record(line)
        if record is None:
            damaged += 1
            continue
        # The index too: a replacement may fail in the same place, and another run write to the same file
        what = (record.rank, record.epoch, record.batch, record.position, record.index, record.kind)
        worker = record.worker if record.index is None else None  # each counts the samples of a stream for itself
        records.setdefault((*what, worker), record)
    return Quarantine(os.fspath(path), tuple(records.values()), damaged)


def _record(line: bytes) -> QuarantineRecord | None:
    try:
        fields = json.loads(line)
        record = QuarantineRecord(**{name: fields[name] for name in _FIELDS if name in fields})
    except (ValueError, TypeError, RecursionError):
        return None
    index = record.index
    known = index is None or (isinstance(index, (int, str)) and not isinstance(index, bool))
    numbers = (record.rank, record.epoch, record.batch, record.position)
    plain = isinstance(record.kind, str) and all(isinstance(number, (int, type(None))) for number in numbers)
    return record if known and plain else None


class Quarantine:
    """The samples of a quarantine file; `len()` and iteration are over its records.

    Attributes:
        path: the file.
        records: each fault once, in the order in which they were written.
        damaged: lines that cannot be read: a full disk, or a program that was killed as it wrote.
    """

    def __init__(self, path: str, records: Sequence[QuarantineRecord], damaged: int = 0) -> None:
        self.path = path
        self.records = list(records)
        self.damaged = damaged

    @property
    def indices(self) -> list[Key]:
        """Returns each bad sample once: numbers in ascending order, then others as they come. Excludes those of
        `SkipSample`.
        """
        bad = dict.fromkeys(record.index for record in self.records if record.kind != "skip")
        numbers = sorted(index for index in bad if isinstance(index, int))
        return [*numbers, *(index for index in bad if isinstance(index, str))]

    def without(self, dataset: Any) -> Subset[Any]:
        """Returns the good samples of a map-style dataset, the one passed to the loader."""
        length = len(dataset)
        numbers = [index for index in self.indices if isinstance(index, int)]
        bad = {index % length for index in numbers if -length <= index < length}
        return Subset(dataset, _Others(length, sorted(bad)))

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[QuarantineRecord]:
        return iter(self.records)

    def __repr__(self) -> str:
        """Returns the numbers of faults and their causes."""
        causes = Counter(class_of(record) for record in self.records)
        firsts = {class_of(record): record for record in reversed(self.records)}
        faults = "1 fault" if len(self.records) == 1 else f"{len(self.records):,} faults"
        unnamed = sum(record.index is None for record in self.records)
        streams = f", {unnamed:,} in streams, which have no index" if unnamed else ""
        lines = [f"{faults} in {self.path}, {len(self.indices):,} bad samples{streams}"]
        lines += [f"{count:>8,}  {cause}, first {_example(firsts[cause])}" for cause, count in causes.most_common(10)]
        if len(causes) > 10:
            lines.append(f"{'':>8}  and {len(causes) - 10:,} other classes of exceptions")
        if self.damaged:
            lines.append(f"{self.damaged:>8,}  damaged lines")
        return "\n".join(lines)


def _example(record: QuarantineRecord) -> str:
    sample = "in a stream" if record.index is None else f"sample {record.index}"
    described = f" ({record.description})" if record.description else ""
    return f"{sample}{described}{on_one_line(record)}"


class _Others(Sequence[int]):
    """0, 1, 2, … without a few: as long as those few, so that a worker's copy of 10^9 indices costs nothing."""

    def __init__(self, length: int, without: Sequence[int]) -> None:
        self._length = length - len(without)
        # The i-th that is left has j of the others before it, if those stand at most i behind j
        self._gaps = [number - before for before, number in enumerate(without)]

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> list[int]: ...
    def __getitem__(self, place: Any) -> Any:
        chosen = range(self._length)[place]
        return self._at(chosen) if isinstance(chosen, int) else [self._at(each) for each in chosen]

    def _at(self, place: int) -> int:
        return place + bisect.bisect_right(self._gaps, place)
