"""A unit of work, as it travels to a worker, and the settings of the loader that concern a worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from stoker._core.protocol import asked
from stoker._engine.backend import Capabilities
from stoker._engine.backends import KINDS
from stoker.errors import SamplerError
from stoker.loader._job.jpeg_reader import JpegReading
from stoker.loader._random.sample_seeding import Seeding

Method = Literal["serial", "thread", "process"]

TRIES = 32
"""Batches at the start of an epoch after each of which the loader, or a worker, tries to switch to the short path, and
distance of the later ones after which it tries again."""

SMALL_BATCH = 2**20
"""Bytes below which a worker process collates a batch by the short path: once all of its samples are there."""

CONCURRENCY = 16
"""Samples that a worker awaits at a time, by default."""


class Work(NamedTuple):
    """A unit as it travels: all inputs of its batch except the dataset."""

    run: int  # of the iterator's epochs: each opens a stream once
    seed: int
    position: int
    indices: Any  # of a stream: its state to resume from, or None
    stride: int = 1
    set_epoch: int | None = None  # for the dataset
    epoch: int = 0
    batch: int = 0
    spares: Sequence[Any] = ()  # indices that may take the place of samples that fail
    order: int | None = None  # the number that a DataPipe's random numbers follow from
    drawn: Sequence[str] = ()  # names of generators that other units were found to draw from


def positions_of(work: Work, indices: Sequence[Any]) -> range:
    """Returns the positions in the epoch of a unit's samples."""
    return range(work.position, work.position + work.stride * len(indices), work.stride)


class GivenBatch(list[Any]):
    """The indices in a batch that a batch sampler gave as something else than a list, of a subclass of lists as well.

    As in torch, `__getitem__` gets what iterating over the batch gives (of an array of uint8, `np.uint8`), and
    `__getitems__` the batch itself.

    Attributes:
        given: the batch.
    """

    def __init__(self, indices: Any) -> None:
        super().__init__(index for index in indices)  # nothing else is asked of the user's object
        self.given = self if iter(indices) is indices else indices  # an iterator has been read now

    def __reduce__(self) -> Any:
        return (list, (list(self),)) if self.given is self else (GivenBatch, (self.given,))


def as_batch(batch: Any) -> GivenBatch:
    """Returns a batch of indices that came as something else than a list; raises SamplerError if it is none."""
    if isinstance(batch, (str, bytes)) or not hasattr(batch, "__iter__") or asked(batch, "ndim", 1) == 0:
        raise SamplerError(
            f"the batch sampler yielded {batch!r}, which is no batch: each item must be a list of indices. "
            "Pass a sampler of single indices as `sampler=`, with a `batch_size`."
        )
    return GivenBatch(batch)


def as_given(indices: Any) -> Any:
    """Returns the indices of a batch as the sampler gave them."""
    if type(indices) is not GivenBatch:
        return indices
    return list(indices) if indices.given is indices else indices.given


class Raised:
    """Takes the place of a sample that raised, until its turn comes."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def sample_of(outcome: Any) -> Any:
    """Returns a sample that was made earlier, or raises its error."""
    if type(outcome) is not Raised:
        return outcome
    try:
        raise outcome.error
    finally:
        del outcome  # else the exception would refer to itself, and keep the batch until the next collection


@dataclass(frozen=True)
class JobSettings:
    """The loader's settings that concern a worker."""

    iterable: bool
    batched: bool
    batch_size: int | None
    drop_last: bool
    num_workers: int
    method: Method
    seeding: Seeding
    own_collate: bool
    shard: Literal["auto", "none", "torch"]
    threads: int = 1  # that make samples, in each worker
    concurrency: int = 0  # of samples in flight in each worker; 0 if none is awaited
    rank: int = 0  # of those that share the epoch, and its seed
    timed: bool = False  # whether answers carry timings
    sampled: bool = False  # and stacks of the workers
    jpegs: JpegReading = "workers"  # the processes that read JPEGs by Stoker's reader
    looked_at: int = 0  # samples that were made in this process in earlier epochs
    transformed_later: bool = False  # whether the trainer transforms batches, and needs the positions of their samples
    snapshot_every: int | None = None  # units from one state of a stream to the next, if states cost much

    @property
    def capabilities(self) -> Capabilities:
        """Returns the capabilities of the backend that runs the job."""
        return KINDS[self.method].capabilities
