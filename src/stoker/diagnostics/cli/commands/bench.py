"""`stoker bench`: the whole grid of numbers of workers and batch sizes, with a plot."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

import typer

from stoker._core.machine import cpus
from stoker.diagnostics.cli.command_error import CommandError
from stoker.diagnostics.cli.commands.run import check_engine, is_target
from stoker.diagnostics.cli.commands.tune import EACH, numbers
from stoker.diagnostics.cli.interruptible import interruptible
from stoker.diagnostics.cli.output import console_of, print_json
from stoker.diagnostics.cli.output_files import check_output
from stoker.diagnostics.cli.setting_table import print_trials, short
from stoker.diagnostics.cli.status_line import StatusLine
from stoker.diagnostics.settings.bench_plot import PAGES, check_plot, write_plot
from stoker.diagnostics.settings.setting_bench import BenchedLoader, TargetBench
from stoker.diagnostics.settings.setting_search import grid, numbers_of_workers
from stoker.diagnostics.settings.setting_trial import SettingTrial
from stoker.diagnostics.settings.tuning import Tuning, in_words

EVERY = 8
"""CPUs up to which every number of workers is measured; beyond them, powers of two."""


def bench(
    target: Annotated[str, typer.Argument(metavar="MODULE:OBJECT", help="A loader, a dataset, or what makes one.")],
    workers: Annotated[str | None, typer.Option(help="Numbers of workers: 0,1,2,4. Else 0 up to the CPUs.")] = None,
    batch_sizes: Annotated[str | None, typer.Option(help="Batch sizes: 32,64. Else that of the loader.")] = None,
    step_ms: Annotated[float, typer.Option(min=0, help="Milliseconds of a training step.")] = 0.0,
    each: Annotated[float, typer.Option("--each", min=0.05, help="Measured seconds of each setting.")] = EACH,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="Write the curves: .html, .png, .svg or .pdf.")] = (
        None
    ),
    engine: Annotated[
        Literal["torch", "stoker"], typer.Option(help="Under torch's loaders: torch's engine, or Stoker's.")
    ] = "torch",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measures a loader with each number of workers and each batch size, and draws the curves."""
    check_engine(engine)
    if not is_target(target):
        raise CommandError(
            f"{target} names no loader: write module:object. For a script, there is stoker tune {target}"
        )
    sizes = numbers(batch_sizes, "--batch-sizes", 1)
    counts = numbers(workers, "--workers", 0) or usual_workers(cpus.cpus().number)
    if plot is not None:
        try:
            check_plot(plot)
        except ValueError as error:
            raise CommandError(f"--plot {error}") from error
        check_output(plot, "--plot", "HTML" if plot.lower().endswith(PAGES) else None)
    tuning, about = None, None
    with (
        StatusLine(sys.stderr, () if as_json else (sys.stdout,)) as line,
        interruptible() as interrupted,
        TargetBench(target, engine, step_ms / 1000, sizes[0] if sizes else None) as made,
    ):
        line.show("stoker bench: starting")
        about = made.open()
        tuning = Tuning(made, about, each)
        settings = grid(about.present, counts, sizes)
        tuning.grid(
            settings,
            lambda setting, trials: line.show(f"stoker bench: {short(setting)}, {len(trials)} of {len(settings)}"),
        )
    trials = [] if tuning is None else tuning.trials
    best = max(trials, key=lambda trial: trial.rate, default=None)
    verdict = "No setting gave a batch." if best is None or best.failure is not None else words(best)
    if as_json:
        print_json(as_dict(about, trials, best, bool(interrupted)))
    elif about is not None:
        console = console_of(sys.stdout)
        console.print(f"{target} {about.dataset}, on {'Stoker' if about.engine == 'stoker' else 'torch'}'s engine")
        console.print()
        print_trials(console, trials, None if best is None else best.setting)
        console.print()
        console.print(verdict)
    if plot is not None and best is not None:
        try:
            write_plot(trials, plot, f"stoker bench {target}", verdict)
        except OSError as error:
            raise CommandError(f"--plot {plot}: it cannot be written ({error.strerror}): name another file") from error
    if interrupted:
        raise typer.Exit(128 + interrupted[0])
    if trials and all(trial.failure is not None for trial in trials):
        raise typer.Exit(1)


def usual_workers(cpus: int) -> tuple[int, ...]:
    """Returns the numbers of workers that are measured if none are named."""
    return tuple(range(cpus + 1)) if cpus <= EVERY else tuple(n for n in numbers_of_workers(cpus, None) if n <= cpus)


def words(best: SettingTrial) -> str:
    """Returns the fastest setting as a sentence."""
    return f"Fastest: {best.rate:,.0f} samples/s with {in_words(best.setting)}."


def as_dict(
    about: BenchedLoader | None, trials: list[SettingTrial], best: SettingTrial | None, interrupted: bool
) -> dict[str, Any]:
    """Returns the grid as plain JSON values."""
    return {
        "loader": None if about is None else {"name": about.name, "dataset": about.dataset, "engine": about.engine},
        "fastest": None if best is None or best.failure is not None else best.as_dict(),
        "settings": [trial.as_dict() for trial in trials],
        "interrupted": interrupted,
    }
