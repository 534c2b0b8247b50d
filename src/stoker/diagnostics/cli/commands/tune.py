"""`stoker tune`: searches the arguments with which a loader is fastest, and prints the line to paste."""

from __future__ import annotations

import sys
from time import perf_counter
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from stoker._core.machine import cpus
from stoker.diagnostics.cli.command_error import CommandError
from stoker.diagnostics.cli.commands.run import check_engine, checked_command, is_target
from stoker.diagnostics.cli.interruptible import interruptible
from stoker.diagnostics.cli.output import console_of, print_json
from stoker.diagnostics.cli.setting_table import print_trials, short
from stoker.diagnostics.cli.status_line import StatusLine
from stoker.diagnostics.settings.setting_bench import BenchedLoader, ScriptBench, SettingBench, TargetBench
from stoker.diagnostics.settings.setting_search import SearchSpace, SettingSearch
from stoker.diagnostics.settings.setting_trial import SettingTrial
from stoker.diagnostics.settings.tuning import Tuning, conclusion, line_to_paste
from stoker.diagnostics.watched_program import Engine

EACH = 2.5
"""Seconds for which a setting is measured, after its warm start."""


def tune(
    target: Annotated[
        list[str] | None, typer.Argument(metavar="MODULE:OBJECT | SCRIPT [ARGS]...", show_default=False)
    ] = None,
    module: Annotated[str | None, typer.Option("-m", "--module", help="Run a module, as python -m does.")] = None,
    step_ms: Annotated[
        float | None, typer.Option(min=0, help="Milliseconds of a training step, with MODULE:OBJECT.")
    ] = None,
    time: Annotated[float, typer.Option("--seconds", min=1, help="Time for the whole search.")] = 120.0,
    each: Annotated[float, typer.Option("--each", min=0.05, help="Measured seconds of each setting.")] = EACH,
    workers: Annotated[int | None, typer.Option("--max-workers", min=0, help="The most workers to try.")] = None,
    batch_sizes: Annotated[str | None, typer.Option(help="Also try these batch sizes: 32,64,128.")] = None,
    loader: Annotated[str | None, typer.Option(metavar="FILE.py:LINE", help="A script's loader, by its line.")] = None,
    engine: Annotated[
        Literal["torch", "stoker"], typer.Option(help="Under torch's loaders: torch's engine, or Stoker's.")
    ] = "torch",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Searches workers, prefetching and threads with which a loader is fastest, and prints the line to paste.

    MODULE:OBJECT names a loader, a dataset, or a function without arguments that makes one: it is made once, and each
    setting takes some seconds. A SCRIPT is run again for each setting, up to enough batches of one of its loaders.
    """
    check_engine(engine)
    ends = perf_counter() + time
    sizes = numbers(batch_sizes, "--batch-sizes", 1)
    words = target or []
    with StatusLine(sys.stderr, () if as_json else (sys.stdout,)) as line, interruptible() as interrupted:
        tuning, search, about = None, None, None
        with bench_of(words, module, step_ms, engine, each, loader, sizes) as bench:
            line.show("stoker tune: starting")
            about = bench.open()
            tuning = Tuning(bench, about, each, ends)
            space = SearchSpace(about.present, cpus.cpus().number, workers, about.threads, sizes)
            search = SettingSearch(space)
            tuning.follow(search, lambda setting, trials: line.show(live(short(setting), trials)))
    best = None if search is None else search.best()
    if as_json:
        print_json(as_dict(about, tuning, search, bool(interrupted)))
    elif tuning is not None and about is not None and search is not None and best is not None:
        show(console_of(sys.stdout), about, tuning, search, best, bool(interrupted))
    if interrupted:
        if best is None:
            sys.stderr.write("stoker: interrupted before a setting was measured\n")
        raise typer.Exit(128 + interrupted[0])
    if best is None and search is not None:
        failures = "; ".join(f"{short(trial.setting)}: {trial.failure}" for trial in search.trials())
        raise CommandError(f"no setting can be taken: {failures}")


def numbers(text: str | None, option: str, least: int) -> tuple[int, ...]:
    """Returns the numbers of an option, such as "32,64".

    Raises:
        CommandError: it holds something else.
    """
    try:
        found = tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        found = (least - 1,)
    if any(number < least for number in found):
        raise CommandError(f"{option} {text}: write numbers from {least} on, with commas between them: 32,64")
    return found


def bench_of(
    words: list[str],
    module: str | None,
    step_ms: float | None,
    engine: Engine,
    each: float,
    loader: str | None,
    sizes: tuple[int, ...],
) -> SettingBench:
    """Returns the bench for a script, a module that is run, or `module:object`.

    Raises:
        CommandError: there is no such script, or an option does not fit.
    """
    if module is None and words and is_target(words[0]):
        if len(words) > 1:
            raise CommandError(f"{words[1]} is left over: options stand before {words[0]}, which takes no arguments")
        if loader is not None:
            raise CommandError("--loader is for a script: module:object names the loader itself")
        return TargetBench(words[0], engine, (step_ms or 0.0) / 1000, sizes[0] if sizes else None)
    if step_ms is not None:
        raise CommandError("--step-ms is for module:object: a script has steps of its own")
    return ScriptBench(checked_command(words, module, "tune"), engine, each, loader)


def live(state: str, trials: list[SettingTrial]) -> str:
    """Returns the line that is shown while a setting is measured."""
    best = max((trial.rate for trial in trials), default=0.0)
    return f"stoker tune: {state}, after {len(trials)} settings" + (f", best {best:,.0f} samples/s" if best else "")


def as_dict(
    about: BenchedLoader | None, tuning: Tuning | None, search: SettingSearch | None, interrupted: bool
) -> dict[str, Any]:
    """Returns the search as plain JSON values."""
    best = None if search is None else search.best()
    return {
        "loader": None if about is None else {"name": about.name, "dataset": about.dataset, "engine": about.engine},
        "present": None if about is None else about.present.arguments,
        "best": None if best is None else best.as_dict(),
        "line": None if best is None or about is None else line_to_paste(about, best),
        "settings": [] if search is None else [trial.as_dict() for trial in search.trials()],
        "out_of_time": tuning is not None and tuning.out_of_time,
        "interrupted": interrupted,
    }


def show(
    console: Console,
    about: BenchedLoader,
    tuning: Tuning,
    search: SettingSearch,
    best: SettingTrial,
    interrupted: bool,
) -> None:
    """Prints the curve, the gain of the best setting, and the line to paste."""
    console.print(f"{about.name} {about.dataset}, on {'Stoker' if about.engine == 'stoker' else 'torch'}'s engine")
    console.print()
    print_trials(console, search.trials(), best.setting)
    console.print()
    if interrupted:
        console.print("Interrupted; the best so far:")
    elif tuning.out_of_time:
        console.print("The time was over before all settings were tried: --seconds gives it more.")
    console.print(conclusion(about, search.trials(), best))
    if best.setting.persistent and not about.present.persistent:
        console.print("Epochs are short: workers that start anew in each take longer, so they are kept.")
    console.print()
    console.print(line_to_paste(about, best), style="bold", soft_wrap=True)
