"""Prepares a worker process: torch's own `get_worker_info()`, lazy parts of libraries, and the seeds of global
generators.

The function object is torch's and may be bound to names anywhere, so its code is replaced, not its name. In a process
worker without torch, that happens when torch is first imported. Then torch's default generator, which has another seed
in each process, begins there as every other generator of torch's does: samples of several workers may be one order.
Where a sample has imported torch, its generator is then seeded for that sample.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

import numpy as np

from stoker._core.after_import import AfterImport
from stoker._core.worker_info import TORCHS, current, function_of_torchs
from stoker._engine.backends import BY_REPORT
from stoker.loader._random.find_generators import find_generators
from stoker.loader._random.generators import global_streams, loaded_torch, mix, stream_of, torch_unused
from stoker.loader._random.sample_rng import SampleRNG
from stoker.loader._random.sample_seeding import Seeding

_UNUSED = 67280421310721
"""c10's `default_rng_seed_val`: the seed of a `torch.Generator()`."""


def _answer(torchs_own: Any) -> Any:
    answer = torchs_own if current.info is None else current.info
    if answer is not None:  # None does not identify a worker
        current.call()
    return answer


def _replacement():  # type: ignore[no-untyped-def] # runs with the globals of torch's module
    return __stoker_answer__(_worker_info)  # type: ignore[name-defined] # noqa: F821


def connect() -> None:
    """Makes torch's `get_worker_info()` return Stoker's workers, in any thread; elsewhere it works as before."""
    if TORCHS in sys.modules:
        _patch()
    elif _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _patch() -> None:
    function = function_of_torchs()
    if function is not None and function.__code__ is not _replacement.__code__:
        function.__globals__["__stoker_answer__"] = _answer
        function.__code__ = _replacement.__code__


def _on_torch(torch: ModuleType) -> None:
    """Notes that the current sample has imported torch."""
    if isinstance(rng := current.rng, SampleRNG):
        rng.on_torch()


def _on_torchs_workers(module: ModuleType) -> None:
    _patch()
    info = current.info
    if info is not None and BY_REPORT[str(info.worker_method)].capabilities.own_process:
        sys.modules["torch._C"].default_generator.manual_seed(_UNUSED)


_finder = AfterImport({"torch": _on_torch, TORCHS: _on_torchs_workers})


# Lazy parts of libraries, loaded before workers are forked so that they share them. Else each worker loads them at its
# first sample: Pillow's JPEG decoder takes 5 ms and 2.4 MB in each instead of 2 ms and 0.2 MB.


_LATE = {"PIL.Image": "PIL.JpegImagePlugin"}
"""Parts to load, by the module that needs them."""


def load() -> None:
    """Loads the late parts of libraries that this process has loaded."""
    for library, part in _LATE.items():
        if library in sys.modules and part not in sys.modules:
            with contextlib.suppress(ImportError):  # an unusual build without it: its users get the error
                importlib.import_module(part)


# Seeds the global generators of a worker process, and detects a `worker_init_fn` that seeds them itself.


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
