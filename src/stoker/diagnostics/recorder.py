"""`Recorder`: writes what the loaders of a measured process do to a file, for the process that measures it.

Only the standard library is imported: the recorder is in the process before the user's script. No thread is started.
The file holds lines of JSON. An object describes a loader (`{"loader": 0, ...}`) or the beginning of an epoch
(`{"epoch": 0, "loader": 0, "begun": ..., "ready": ...}`); a list is a span of time in which batches arrived:
`[loader, epoch, asked, got, batches, waited, samples]`, where `batches` is 0 at the end of an epoch. Workers write
`{"made": mark, "begun": ..., "seconds": ..., "cpu": ...}` for batches that they have made, where the mark is that of
the epoch that started them, and the training process `{"loader": 0, "bytes": ...}` for some batches, and the notes of
`composition`. A line `{"loader": 0, "sampled": ...}` has seconds inside the sampler. Times are seconds of
`time.perf_counter()`, which on Linux is one clock for all processes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import time
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.diagnostics.composition.epoch_notes import EpochNotes

FLUSH = 0.25
"""Seconds between writes. A process that is killed loses the records of that time."""

TOGETHER = 0.001
"""Seconds within which batches are summed up: a loop that takes microseconds for a batch is not slowed by records."""

SINGLE = 20_000
"""Records of a process; batches that follow are summed up until the next write."""

WORKS = 1000
"""Batches of which a worker records each; then every second one of as many, every fourth, and so on."""

SOON = 8
"""Batches of a worker that are written at once: it may end before the next write is due."""

SIZED = 4
"""Batches of each epoch whose bytes are counted."""

DESCRIBED = (
    *("batch_size", "num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "drop_last"),
    "threads_per_worker",  # of Stoker's loaders
)


class EpochRecord:
    """An epoch under way: the numbers of its loader and of itself, and its mark in the records of workers.

    Attributes:
        counted: the class of its latest batch, or of that batch's first field, if `shape[0]` tells the samples.
        notes: of its samples; None if they are not noted.
        sampled: the record of the time inside the sampler, and the number of flushes when it was begun.
    """

    __slots__ = ("counted", "epoch", "loader", "mark", "notes", "sampled", "single", "sized")

    def __init__(self, loader: int, epoch: int, single: bool, mark: str | None = None) -> None:
        self.loader = loader
        self.mark = mark
        self.sized = 0
        self.counted: Any = None
        self.notes: EpochNotes | None = None
        self.sampled: tuple[int, dict[str, Any]] = (-1, {})
        self.epoch = epoch
        self.single = single  # one sample in each batch, because batch_size is None


class Recorder:
    """Records loaders, epochs and batches of this process. Not for several threads at once, as loaders are not.

    Args:
        folder: where the file is made, when there is something to write.

    Attributes:
        flushes: how often records were written.
        mark: of the epoch whose next batch is asked for in this process; None between batches.
        open: the latest span, of an epoch under way, to which quick batches are added; None if it is closed.
        noted: notes of the samples of epochs, which are written with the records.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """Begins without a record: also in a forked process, which has a file of its own."""
        self._is_begun = False  # the file
        self._pid = os.getpid()
        self.flushes = 0
        self._lines: list[Any] = []
        self.open: list[Any] | None = None
        self._flushed = 0.0
        self._left = SINGLE
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._epochs: dict[int, int] = {}
        self._is_off = False
        self.mark: str | None = None
        self._marks = 0
        self._works: dict[str, list[int]] = {}
        self.noted: list[EpochNotes] = []

    def new_mark(self) -> str:
        """Returns a mark for an epoch that is about to begin, unlike all others of the program."""
        self._marks += 1
        return f"{self._pid}:{self._marks}"

    def begin(
        self,
        loader: Any,
        site: str,
        begun: float,
        ready: float,
        engine: str = "torch",
        mark: str | None = None,
        made_at: str | None = None,
    ) -> EpochRecord:
        """Records that an epoch has begun: `iter(loader)` was called at `begun` and returned at `ready`.

        Args:
            mark: of the epoch in the records of workers.
            made_at: the line that made the loader.
        """
        number = self._number(loader, site, engine, made_at)
        epoch = self._epochs[number] = self._epochs.get(number, -1) + 1
        self.open = None
        marked = {} if mark is None else {"mark": mark}
        self._lines.append({"epoch": epoch, "loader": number, "begun": begun, "ready": ready, **marked})
        single = _attribute(loader, "batch_sampler") is None and _attribute(loader, "batch_size") is None
        return EpochRecord(number, epoch, single, mark)

    def batch(self, record: EpochRecord, asked: float, got: float, samples: int) -> None:
        """Records a batch that was requested at `asked` and received at `got`."""
        last = self.open
        if last is not None and last[0] == record.loader and (got - last[2] < TOGETHER or self._left <= 0):
            last[3] = got
            last[4] += 1
            last[5] += got - asked
            last[6] += samples
        else:
            self._left -= 1
            self.open = [record.loader, record.epoch, asked, got, 1, got - asked, samples]
            self._lines.append(self.open)
        if got - self._flushed > FLUSH:
            self.flush(got)

    def sample(self, record: EpochRecord, seconds: float) -> None:
        """Records time inside the sampler."""
        flushes, line = record.sampled
        if flushes != self.flushes:  # the line was written
            line = {"loader": record.loader, "sampled": 0.0}
            record.sampled = self.flushes, line
            self._lines.append(line)
        line["sampled"] += seconds

    def end(self, record: EpochRecord, asked: float, got: float) -> None:
        """Records the end of an epoch."""
        self.open = None
        self._lines.append([record.loader, record.epoch, asked, got, 0, got - asked, 0])
        if record.notes is not None:
            record.notes.is_done = True
        self.flush(got)

    def is_due(self, mark: str) -> bool:
        """Returns whether the next batch that is made is one to record, and counts it."""
        known = self._works.setdefault(mark, [0, 1])
        known[0] += 1
        if known[0] > WORKS * known[1] * 2:
            known[1] *= 2
        return known[0] % known[1] == 0

    def work(self, mark: str, begun: float, seconds: float, cpu: float, collated: float | None = None) -> None:
        """Records a batch that was made in this process; `collated` are the seconds of its collation, if known."""
        known = {} if collated is None else {"collated": collated}
        self._lines.append({"made": mark, "begun": begun, "seconds": seconds, "cpu": cpu, **known})
        if self._works.get(mark, (SOON + 1,))[0] <= SOON or begun + seconds - self._flushed > FLUSH:
            self.flush(begun + seconds)

    def size(self, record: EpochRecord, number: int) -> None:
        """Records the bytes of a batch."""
        record.sized += 1
        self.open = None
        self._lines.append({"loader": record.loader, "bytes": number})

    def note(self, line: dict[str, Any]) -> None:
        """Records plain values, which may change until they are written, at the next flush."""
        self._lines.append(line)

    def flush(self, now: float | None = None) -> None:
        """Writes all records. An error of the file system ends the recording, with one line on standard error."""
        self._flushed = time.perf_counter() if now is None else now
        if self.noted:
            self._lines += [line for notes in self.noted for line in notes.lines()]
            self.noted = [notes for notes in self.noted if not notes.is_done]
        lines, self._lines, self.open = self._lines, [], None
        self.flushes += 1
        if self._is_off or not lines:
            return
        try:
            file = self._opened()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # the program's files may be fewer at the next write
                self._lines = lines
            else:
                self._stop(error)
            return
        try:
            about = [] if self._is_begun else [{"pid": self._pid, "rank": os.environ.get("RANK")}]
            self._is_begun = True
            data = memoryview("".join(f"{json.dumps(line)}\n" for line in [*about, *lines]).encode())
            while data:
                data = data[os.write(file, data) :]
        except OSError as error:
            self._stop(error)
        finally:
            os.close(file)

    def _opened(self) -> int:
        """Opens the file, for one write: a program may close all descriptors and open its own file by our number."""
        path = os.path.join(self._folder, f"{self._pid}.jsonl")
        how = os.O_WRONLY | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        return os.open(path, how if self._is_begun else how | os.O_CREAT, 0o600)

    def _stop(self, error: OSError) -> None:
        self._is_off = True
        say(f"stoker run: process {self._pid} is no longer measured: {error}")

    def _number(self, loader: Any, site: str, engine: str, made_at: str | None) -> int:
        key = id(loader)
        if key in self._known and self._known[key][0]() is loader:
            return self._known[key][1]
        number = len(self._epochs)
        self._known[key] = weakref.ref(loader), number
        self._epochs[number] = -1
        about = {"site": site, "made_at": made_at, "engine": engine, **described(loader)}
        self._lines.append({"loader": number, **about})
        return number


def say(text: str) -> None:
    """Writes a line to standard error, if the program has left it open."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(f"{text}\n")


def described(loader: Any) -> dict[str, Any]:
    """Returns a loader's settings as plain values. Calls no method of the user's beside `len()` of the dataset."""
    dataset = _attribute(loader, "dataset")
    settings = {name: _attribute(loader, name) for name in DESCRIBED}
    settings["context"] = _context(loader)
    settings["sampler"] = sampler_of(loader)
    plain = {name: value if isinstance(value, int | str) else None for name, value in settings.items()}
    is_stream = _attribute(loader, "_dataset_kind") == 1
    record = _attribute(loader, "_stoker")
    options = None if record is None else record.options(loader)
    awaited = 0 if options is None else options.in_flight
    if options is not None and options.remote is not None:
        plain |= {"remote_workers": options.remote.num_workers, "on_demand": options.on_demand}
    about = {"dataset": type(dataset).__name__, "class": type(loader).__name__, "stream": is_stream}
    return {**about, **plain, **({"awaited": awaited} if awaited else {})}


def _context(loader: Any) -> str | None:
    context = _attribute(loader, "multiprocessing_context")
    return context if isinstance(context, str) else _attribute(context, "_name")


def sampler_of(loader: Any) -> str | None:
    """Returns the class of the sampler whose order the batches have."""
    for name in ("batch_sampler", "sampler"):
        kind = type(_attribute(loader, name)).__name__
        if kind not in ("BatchSampler", "NoneType"):
            return kind
    return None


def _attribute(loader: Any, name: str) -> Any:
    """Returns an attribute of a loader; None if there is none, or if a property of the user's raises."""
    try:
        return getattr(loader, name, None)
    except Exception:
        return None


def counted_by_shape(value: Any) -> type | None:
    """Returns the class of a tensor or an array; None for anything else, derived classes included."""
    kind = type(value)
    return kind if (kind.__module__, kind.__name__) in (("torch", "Tensor"), ("numpy", "ndarray")) else None


def samples_in(batch: Any, single: bool) -> int:
    """Returns the samples of a batch: the length of its first array, tensor or list of texts; 1 if it is unknown.

    An object of the user's that raises counts as one sample.
    """
    if single:
        return 1
    try:
        return _first_length(batch)
    except Exception:  # of an attribute of the user's object: the program must not see it
        return 1


def _first_length(batch: Any) -> int:
    if type(batch) is list and batch:  # as the usual collation makes it: this is called for each batch
        batch = batch if isinstance(batch[0], str | bytes) else batch[0]
    for _ in range(8):
        if getattr(batch, "is_nested", False) is True:  # whose shape torch refuses to tell
            return int(batch.size(0))
        shape = getattr(batch, "shape", None)
        if shape is not None:
            return int(shape[0]) if len(shape) else 1
        if _is_mapping(batch):
            inner = next(iter(batch.values()), None)
        elif isinstance(batch, list | tuple) and batch:
            inner = batch[0]
        else:
            return 1
        if isinstance(inner, str | bytes | int | float | bool):
            return len(batch)
        batch = inner
    return 1


def _is_mapping(batch: Any) -> bool:
    return isinstance(batch, dict) or (callable(getattr(batch, "keys", None)) and callable(batch.values))


def bytes_in(batch: Any, depth: int = 4) -> int:
    """Returns the bytes of all arrays and tensors of a batch; containers are searched `depth` levels deep.

    What raises counts for nothing: sparse tensors do not tell their bytes.
    """
    try:
        return _bytes_in(batch, depth)
    except Exception:  # of an attribute of the user's object: the program must not see it
        return 0


def _bytes_in(batch: Any, depth: int) -> int:
    if type(number := getattr(batch, "nbytes", None)) is int:
        return number
    if isinstance(batch, bytes | bytearray):
        return len(batch)
    if not depth:
        return 0
    if _is_mapping(batch):
        return sum(bytes_in(value, depth - 1) for value in batch.values())
    if isinstance(batch, list | tuple):
        return sum(bytes_in(value, depth - 1) for value in batch[:1000])
    return 0
