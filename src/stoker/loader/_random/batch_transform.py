"""Applies the `batch_transform` of a loader to one batch after another, with random numbers for each sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stoker._core.protocol import asked
from stoker.loader._random import batch_draws
from stoker.loader._random.sample_seeding import SampleSeeding


class BatchTransform:
    """The one place where a `batch_transform` is applied: in a worker after collation, or in the training process.

    The transform gets `batch_draws()` for each sample. All other generators, `sample_rng()` and the global ones, are
    seeded once for the batch, from the position of its first sample, as for a `collate_fn`.

    Args:
        transform: of the user.
        seeding: of the process or thread that applies it. In the training process it restores the trainer's generators.
    """

    def __init__(self, transform: Callable[[Any], Any], seeding: SampleSeeding) -> None:
        self._transform = transform
        self._seeding = seeding

    def __call__(self, batch: Any, seed: int, positions: Sequence[int], *, epoch: int, number: int) -> Any:
        """Returns the transformed batch.

        Args:
            batch: the collated batch.
            seed: under which its samples were made: the epoch's, or that of a stream.
            positions: of its samples, in its order; those that were left out are not among them.
            epoch: number of the epoch, for errors.
            number: of the batch in the epoch, likewise.

        Raises:
            Exception: of the transform, with a note that names the transform and the batch.
        """
        try:
            with batch_draws.of_batch(seed, positions):
                return self._seeding.transform(seed, positions[0], lambda: self._transform(batch))
        except Exception as error:
            name = asked(self._transform, "__name__", type(self._transform).__name__)
            error.add_note(f"raised by batch_transform={name} for batch {number} of epoch {epoch}")
            raise
