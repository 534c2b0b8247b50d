"""Seeds the global generators of a worker process, and detects a `worker_init_fn` that seeds them itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from stoker.loader._random.find_generators import find_generators
from stoker.loader._random.generators import global_streams, loaded_torch, mix, stream_of, torch_unused
from stoker.loader._random.sample_seeding import Seeding

_EVERYBODY = ("Python", "NumPy", "torch")


def seed_per_worker(worker_id: int, base_seed: int, whose: Collection[str] = _EVERYBODY) -> None:
    """Seeds global generators with the numbers that torch's loader gives this worker (torch's if it is imported)."""
    if "Python" in whose:
        random.seed(base_seed + worker_id)
    if "NumPy" in whose:
        low, high = base_seed & 0xFFFFFFFF, base_seed >> 32
        np.random.seed(np.random.SeedSequence([worker_id, low, high, 0]).generate_state(4))
    if "torch" in whose and (torch := loaded_torch()) is not None:
        torch.default_generator.manual_seed(base_seed + worker_id)  # `torch.manual_seed` spends 4 ms on CUDA


def run_init_fn(
    init_fn: Callable[[int], object] | None, worker_id: int, base_seed: int, *, mode: Seeding, dataset: object
) -> bool:
    """Prepares the generators of a worker process and runs the user's `worker_init_fn`, if there is one.

    In `"auto"`, a function that changes a global generator or one that the dataset holds, or gives the dataset another
    one, controls all of them from then on. To make any change visible, the generators start with numbers that no seed
    of the user's gives; only `torch.initial_seed()` is the same as in torch's workers. Global generators that such a
    function leaves unchanged get the numbers that torch's loader gives them.

    Not thread safe, and not for worker threads, which share these generators.

    Args:
        init_fn: called with `worker_id`.
        worker_id: number of the worker.
        base_seed: the epoch's seed.
        mode: the loader's `seeding`.
        dataset: the worker's dataset, or a tuple of several objects.

    Returns:
        Whether generators keep running without seeds for each sample: always for `"worker"`, never for `"sample"`.

    Raises:
        Exception: raised by `init_fn`.
    """
    seed_per_worker(worker_id, base_seed)
    if init_fn is None or mode != "auto":
        if init_fn is not None:
            init_fn(worker_id)
        return mode == "worker"
    streams = global_streams()
    for stream in streams.values():
        stream.seed(mix(base_seed, worker_id))
    before = {whose: stream.state() for whose, stream in streams.items()}
    held_before = _held_states(dataset)
    init_fn(worker_id)
    streams = {**global_streams(), **streams}
    if "torch" in streams and "torch" not in before:
        before["torch"] = torch_unused()  # the function has imported torch
    untouched = {whose for whose, stream in streams.items() if stream.state() == before[whose]}
    if untouched == streams.keys() and _held_states(dataset) == held_before:
        return False
    seed_per_worker(worker_id, base_seed, untouched)
    return True


def _held_states(dataset: object) -> dict[int, tuple[Any, Any]]:
    """Returns the generators that the dataset holds (kept alive, so that no id is reused) and their states."""
    pairs = [(generator, stream_of(generator)) for generator in find_generators(dataset)]
    return {id(generator): (generator, stream.state()) for generator, stream in pairs if stream is not None}
