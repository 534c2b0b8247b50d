"""Applies the `batch_transform` of a loader to one batch after another, with random numbers for each sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Self

from stoker._core.protocol import asked
from stoker._core.worker_info import current
from stoker.loader._random import batch_draws
from stoker.loader._random.generators import loaded_torch, mix
from stoker.loader._random.sample_rng import SampleRNG
from stoker.loader._random.sample_seeding import SampleSeeding, key_of_transform


class BatchTransform:
    """The one place where a `batch_transform` is applied: in a worker after collation, or in the training process.

    The transform gets `batch_draws()` for each sample. All other generators, `sample_rng()` and the global ones, are
    seeded once for the batch, from the position of its first sample, as for a `collate_fn`.

    Args:
        transform: of the user.
        seeding: of the process or thread that applies it. In the training process it restores the trainer's generators.
        rng: what `sample_rng()` returns in a call; None if that is known already, as in a worker.
    """

    def __init__(self, transform: Callable[[Any], Any], seeding: SampleSeeding, rng: SampleRNG | None = None) -> None:
        self._transform = transform
        self._seeding = seeding
        self._rng = rng

    @classmethod
    def with_own_seeding(cls, transform: Callable[[Any], Any]) -> Self:
        """Returns one that draws the numbers of `seeding="auto"`, and restores the generators: for the training
        process, and for workers whose generators `seeding="worker"` leaves alone.
        """
        rng = SampleRNG(0)
        return cls(transform, SampleSeeding("auto", dataset=(transform,), restore=True, rng=rng), rng)

    def __call__(
        self, batch: Any, seed: int, positions: Sequence[int], *, epoch: int, number: int, devices: Sequence[Any] = ()
    ) -> Any:
        """Returns the transformed batch.

        Args:
            batch: the collated batch.
            seed: under which its samples were made: the epoch's, or that of a stream.
            positions: of its samples, in its order; those that were left out are not among them.
            epoch: number of the epoch, for errors.
            number: of the batch in the epoch, likewise.
            devices: generators of devices, which are seeded too, and have their states back afterwards.

        Raises:
            Exception: of the transform, with a note that names the transform and the batch.
        """
        outside = current.rng
        try:
            if self._rng is not None:
                current.rng = self._rng
            with batch_draws.of_batch(seed, positions), _seeded(devices, seed, positions[0]), _plain_modes():
                return self._seeding.transform(seed, positions[0], lambda: self._transform(batch))
        except Exception as error:
            name = asked(self._transform, "__name__", type(self._transform).__name__)
            error.add_note(f"raised by batch_transform={name} for batch {number} of epoch {epoch}")
            raise
        finally:
            if self._rng is not None:
                current.rng = outside


@contextmanager
def _plain_modes() -> Iterator[None]:
    """Leaves gradients and the CPU's autocast of the program: results do not follow from where the loader is called,
    and are the same in a worker.
    """
    torch = loaded_torch()
    with ExitStack() as modes:
        if torch is not None:
            modes.enter_context(torch.no_grad())
            if torch.is_autocast_enabled("cpu"):
                modes.enter_context(torch.autocast("cpu", enabled=False))
        yield


@contextmanager
def _seeded(devices: Sequence[Any], seed: int, position: int) -> Iterator[None]:
    """Seeds generators of devices for a batch, and gives them their states back."""
    states = [generator.get_state() for generator in devices]
    for generator in devices:
        generator.manual_seed(mix(key_of_transform(seed), position) >> 1)
    try:
        yield
    finally:
        for generator, state in zip(devices, states, strict=True):
            generator.set_state(state)
