"""Attaches the measuring hooks to a process, and Stoker's engine if it is asked for, as soon as there is a loader.

`_startup/sitecustomize.py` calls `attach` in each Python process that `stoker run` starts, and in those that they
start. torch is not imported before the script does it, because scripts set variables of the environment first.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stoker._core.after_import import AfterImport
from stoker.diagnostics.composition.order_hooks import OrderHooks
from stoker.diagnostics.loader_hooks import MEASURED, TORCHDATA, LoaderHooks
from stoker.diagnostics.profile.jpeg_decoding import measure_decoding
from stoker.diagnostics.recorder import Recorder, say
from stoker.diagnostics.worker_hooks import MADE
from stoker.errors import InstallError

FOLDER = "STOKER_RUN_FOLDER"
"""The variable with the folder for the records. Without it nothing is measured."""

ENGINE = "STOKER_RUN_ENGINE"
"""The variable with the engine: "torch" leaves the loaders as they are, "stoker" calls `stoker.install()`."""

AUTO = "STOKER_RUN_AUTO"
"""The variable that is set if the engine also finds the number of workers of each loader."""

LIMIT = "STOKER_RUN_LIMIT"
"""The variable with a `BatchLimit` as text, after which the program ends. Without it the program runs to its end."""

DETAILED = "STOKER_RUN_DETAILED"
"""The variable that is set if workers, and the bytes of batches, are measured too."""

COMPOSITION = "STOKER_RUN_COMPOSITION"
"""The variable that is set if the samples of batches are noted too, for the report."""

OVERRIDE = "STOKER_RUN_OVERRIDE"
"""The variable with an `Override` as text, for the loaders of the program."""

PROFILE = "STOKER_RUN_PROFILE"
"""The variable with a `ProfileOrder` as text, for which the program is profiled. It takes the place of the last two."""


def attach() -> None:
    """Measures the loaders of this process from their import on, if the environment says so. Imports no torch."""
    folder = os.environ.get(FOLDER)
    if not folder or not os.path.isdir(folder):
        return
    recorder = _recorder(folder, os.environ.get(LIMIT))
    detailed = bool(os.environ.get(DETAILED))
    order = OrderHooks(recorder) if os.environ.get(COMPOSITION) else None
    hooks = LoaderHooks(recorder, _override(os.environ.get(OVERRIDE)), detailed, order)
    atexit.register(recorder.flush)
    _recorders.append(recorder)
    if os.environ.get(PROFILE):
        hooks = _profiling_hooks(recorder)
    hooks.observe()
    actions: dict[str, Callable[[ModuleType], None]] = dict.fromkeys(MEASURED, lambda it: hooks.measure(it.__name__))
    if os.environ.get(ENGINE) == "stoker":
        actions["torch.utils.data.dataloader"] = functools.partial(_install_at_first_loader, hooks)
        actions[TORCHDATA] = functools.partial(_measure_if_installed, hooks)
    if hooks.workers is not None:
        measure = hooks.workers.measure
        actions |= dict.fromkeys(MADE, lambda it: measure(it.__name__))
        actions["PIL.JpegImagePlugin"] = functools.partial(measure_decoding, recorder)
        atexit.register(hooks.faults.ended)  # before the last flush, which is registered earlier
    actions["stoker.loader.dataloader"] = lambda it: hooks.note_makers(it.__name__)
    for name in list(actions):
        if name in sys.modules:
            actions.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, AfterImport(actions))


_recorders: list[Recorder] = []


def flush() -> None:
    """Writes all records of this process now, if it is measured."""
    for recorder in _recorders:
        recorder.flush()


def _recorder(folder: str, limit: str | None) -> Recorder:
    if order := os.environ.get(PROFILE):
        from stoker.diagnostics.profile.profiling_recorder import ProfilingRecorder
        from stoker.diagnostics.settings.batch_limit import ProfileOrder

        profiling = ProfilingRecorder(folder, ProfileOrder.of_text(order))
        atexit.register(profiling.forget)  # after the last flush, which is registered later
        return profiling
    if not limit:
        return Recorder(folder)
    from stoker.diagnostics.settings.batch_limit import BatchLimit, LimitedRecorder

    return LimitedRecorder(folder, BatchLimit.of_text(limit))


def _profiling_hooks(recorder: Recorder) -> LoaderHooks:
    from stoker.diagnostics.profile.profiling_recorder import ProfilingHooks, ProfilingRecorder

    assert isinstance(recorder, ProfilingRecorder)
    return ProfilingHooks(recorder)


def _override(text: str | None) -> Callable[[Any, str], None] | None:
    if not text:
        return None
    from stoker.diagnostics.settings.setting_trial import Override

    return Override.of_text(text)


def _measure_if_installed(hooks: LoaderHooks, module: ModuleType) -> None:
    if hooks.measures("torch.utils.data.dataloader"):
        hooks.measure(TORCHDATA)


def _install_at_first_loader(hooks: LoaderHooks, module: ModuleType) -> None:
    """Makes torch's module install Stoker's engine when the first loader is made: torch is complete by then."""
    from stoker.integrations.first_loader import at_first_loader

    def install() -> None:
        auto = "auto" if os.environ.get(AUTO) else None
        try:
            sys.modules["stoker"].install(num_workers=auto)
        except InstallError as error:
            if auto is None:
                raise
            say(f"stoker run: --auto has no effect, because the program has called stoker.install() itself: {error}")
        hooks.measure(module.__name__)
        if hasattr(sys.modules.get(TORCHDATA), "StatefulDataLoader"):  # else in the middle of its import
            hooks.measure(TORCHDATA)

    at_first_loader(module, install)
