"""Makes torch's own `get_worker_info()` give the right answer in our workers, however the user imported it.

The function object is torch's and may be bound to names anywhere, so its code is replaced, not its name. In a process
worker without torch, that happens when torch is first imported. Then torch's default generator, which has another seed
in each process, begins there as every other generator of torch's does: samples of several workers may be one order.
Where a sample has imported torch, its generator is then seeded for that sample.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from stoker._core.worker_info import TORCHS, current, function_of_torchs
from stoker._engine.backends import BY_REPORT
from stoker.loader._random.sample_rng import SampleRNG

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
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _patch() -> None:
    function = function_of_torchs()
    if function is not None and function.__code__ is not _replacement.__code__:
        function.__globals__["__stoker_answer__"] = _answer
        function.__code__ = _replacement.__code__


class _Finder(importlib.abc.MetaPathFinder):
    """Patches torch's module right after it has run, and tells the current sample of the end of torch's import."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name != TORCHS and name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def create_module(self, spec: Any) -> Any:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        spec.loader = module.__loader__ = self._inner  # which has more methods, for resources and sources
        self._inner.exec_module(module)
        if module.__name__ == "torch":
            if isinstance(rng := current.rng, SampleRNG):
                rng.on_torch()
            return
        _patch()
        info = current.info
        if info is not None and BY_REPORT[str(info.worker_method)].capabilities.own_process:
            sys.modules["torch._C"].default_generator.manual_seed(_UNUSED)
