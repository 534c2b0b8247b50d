"""`stoker tune`: searches the arguments with which a loader is fastest, and prints the line to paste.

With `--grid` it measures all of a grid and draws the curves: `stoker bench` is another name of that.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from time import perf_counter
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from stoker._core.machine import cpus
from stoker.diagnostics.cli.commands.run import check_engine, checked_command, is_target
from stoker.diagnostics.cli.lasting_output import interruptible
from stoker.diagnostics.cli.output import (
    NARROW,
    CommandError,
    StatusLine,
    check_output,
    console_of,
    print_json,
    print_table,
    seconds,
    size,
)
from stoker.diagnostics.settings.setting_bench import (
    PAGES,
    BenchedLoader,
    ScriptBench,
    SettingBench,
    TargetBench,
    check_plot,
    write_plot,
)
from stoker.diagnostics.settings.setting_trial import LoaderSetting, SettingTrial
from stoker.diagnostics.settings.tuning import (
    SearchSpace,
    SettingSearch,
    Tuning,
    conclusion,
    grid,
    in_words,
    line_to_paste,
    numbers_of_workers,
)
from stoker.diagnostics.watched_program import Engine

EACH = 2.5
"""Seconds for which a setting is measured, after its warm start."""

GridWorkers = Annotated[
    str | None, typer.Option("--workers", help="Numbers of workers of the grid: 0,1,2,4. Else 0 up to the CPUs.")
]
PlotFile = Annotated[
    str | None, typer.Option("--plot", metavar="FILE", help="Write the curves of the grid: .html, .png, .svg or .pdf.")
]


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
    is_grid: Annotated[bool, typer.Option("--grid", help="Measure all of a grid, of MODULE:OBJECT.")] = False,
    counts: GridWorkers = None,
    plot: PlotFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Searches workers, prefetching and threads with which a loader is fastest, and prints the line to paste.

    MODULE:OBJECT names a loader, a dataset, or a function without arguments that makes one: it is made once, and each
    setting takes some seconds. A SCRIPT is run again for each setting, up to enough batches of one of its loaders.
    """
    if is_grid:
        if module is not None or len(target or []) != 1:
            raise CommandError("--grid measures one module:object: a script would start anew for each of its settings")
        measure_grid("tune --grid", (target or [])[0], counts, batch_sizes, step_ms or 0.0, each, plot, engine, as_json)
        return
    if counts is not None or plot is not None:
        raise CommandError("--workers and --plot are of a grid: add --grid, or take --max-workers for the search")
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
    """Returns the bench for a script, a module that is run, or `module:object`."""
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
    console: Console, about: BenchedLoader, tuning: Tuning, search: SettingSearch, best: SettingTrial, interrupted: bool
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


BAR = 20
"""Characters of the longest bar."""


def print_trials(console: Console, trials: Sequence[SettingTrial], chosen: LoaderSetting | None = None) -> None:
    """Prints a row for each trial. A `*` marks the setting that was chosen; failures are sentences below.

    Columns that are the same in all rows are left out.
    """
    sizes = len({trial.setting.batch_size for trial in trials}) > 1
    good = [trial for trial in trials if trial.failure is None]
    most = max((trial.rate for trial in good), default=0.0)
    if console.width < NARROW:
        width = max(6, console.width - 30)
        for trial in good:
            mark = "*" if trial.setting == chosen else " "
            console.print(
                f"{mark} {short(trial.setting, sizes):<12}{trial.rate:>9,.0f}/s {bar(trial.rate, most, width)}"
            )
    else:
        print_table(console, [_row(trial, good, most, chosen) for trial in good])
    for trial in trials:
        if trial.failure is not None:
            console.print(textwrap.fill(f"{short(trial.setting, sizes)}: {trial.failure}", console.width))


def short(setting: LoaderSetting, batch_size: bool = True) -> str:
    """Returns a setting in few characters: "4w", "4w p4 k", "2w t8 b64".

    Workers, prefetching (p), whether they are kept (k), threads (t), batch size (b) if it is asked for.
    """
    parts = [f"{setting.workers}w"]
    if setting.workers and setting.prefetch is not None and setting.prefetch != 2:
        parts.append(f"p{setting.prefetch}")
    if setting.persistent:
        parts.append("k")
    if setting.threads > 1:
        parts.append(f"t{setting.threads}")
    return " ".join([*parts, *([] if setting.batch_size is None or not batch_size else [f"b{setting.batch_size}"])])


def bar(value: float, most: float, width: int) -> str:
    """Returns a bar whose length is in proportion to a value."""
    mark = "█" if (sys.stdout.encoding or "").lower().startswith("utf") else "#"
    return mark * max(1, round(width * value / most)) if most and value else ""


def _row(
    trial: SettingTrial, good: Sequence[SettingTrial], most: float, chosen: LoaderSetting | None
) -> dict[str, str]:
    setting = trial.setting
    row = {"workers": f"{'*' if setting == chosen else ' '} {setting.workers}"}
    if len({one.setting.prefetch for one in good if one.setting.workers}) > 1:
        row["prefetch"] = "" if not setting.workers else str(setting.prefetch or "auto")
    if len({one.setting.persistent for one in good if one.setting.workers}) > 1:
        row["kept"] = "yes" if setting.persistent else "no"
    if any(one.setting.threads > 1 for one in good):
        row["threads"] = str(setting.threads)
    if len({one.setting.batch_size for one in good}) > 1:
        row["batch"] = str(setting.batch_size)
    return row | {
        "samples/s": f"{trial.rate:,.0f} ±{trial.noise:.0%}",
        "waited": f"{trial.share:.1%}",
        "first batch": seconds(trial.first),
        "CPUs": f"{trial.cpus:.1f}",
        "memory": size(trial.memory) if trial.memory else "unknown",
        " ": f"{bar(trial.rate, most, BAR):<{BAR}}",
    }


EVERY = 8
"""CPUs up to which every number of workers is measured; beyond them, powers of two."""


def bench(
    target: Annotated[str, typer.Argument(metavar="MODULE:OBJECT", help="A loader, a dataset, or what makes one.")],
    workers: GridWorkers = None,
    batch_sizes: Annotated[str | None, typer.Option(help="Batch sizes: 32,64. Else that of the loader.")] = None,
    step_ms: Annotated[float, typer.Option(min=0, help="Milliseconds of a training step.")] = 0.0,
    each: Annotated[float, typer.Option("--each", min=0.05, help="Measured seconds of each setting.")] = EACH,
    plot: PlotFile = None,
    engine: Annotated[
        Literal["torch", "stoker"], typer.Option(help="Under torch's loaders: torch's engine, or Stoker's.")
    ] = "torch",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measures a loader with each number of workers and each batch size, and draws the curves: stoker tune --grid."""
    measure_grid("bench", target, workers, batch_sizes, step_ms, each, plot, engine, as_json)


def measure_grid(
    command: str,
    target: str,
    workers: str | None,
    batch_sizes: str | None,
    step_ms: float,
    each: float,
    plot: str | None,
    engine: Engine,
    as_json: bool,
) -> None:
    """Measures each setting of a grid, and prints and draws the rates.

    Args:
        command: by which it was called, without `stoker`.
    """
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
        line.show(f"stoker {command}: starting")
        about = made.open()
        tuning = Tuning(made, about, each)
        settings = grid(about.present, counts, sizes)
        tuning.grid(
            settings,
            lambda setting, trials: line.show(f"stoker {command}: {short(setting)}, {len(trials)} of {len(settings)}"),
        )
    trials = [] if tuning is None else tuning.trials
    best = max(trials, key=lambda trial: trial.rate, default=None)
    verdict = "No setting gave a batch." if best is None or best.failure is not None else words(best)
    if as_json:
        print_json(bench_as_dict(about, trials, best, bool(interrupted)))
    elif about is not None:
        console = console_of(sys.stdout)
        console.print(f"{target} {about.dataset}, on {'Stoker' if about.engine == 'stoker' else 'torch'}'s engine")
        console.print()
        print_trials(console, trials, None if best is None else best.setting)
        console.print()
        console.print(verdict)
    if plot is not None and best is not None:
        try:
            write_plot(trials, plot, f"stoker {command} {target}", verdict)
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


def bench_as_dict(
    about: BenchedLoader | None, trials: list[SettingTrial], best: SettingTrial | None, interrupted: bool
) -> dict[str, Any]:
    """Returns the grid as plain JSON values."""
    return {
        "loader": None if about is None else {"name": about.name, "dataset": about.dataset, "engine": about.engine},
        "fastest": None if best is None or best.failure is not None else best.as_dict(),
        "settings": [trial.as_dict() for trial in trials],
        "interrupted": interrupted,
    }
