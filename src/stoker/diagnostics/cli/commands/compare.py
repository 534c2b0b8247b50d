"""`stoker compare`: an unchanged program under torch's engine and under Stoker's, by turns; or two reports."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console

from stoker.diagnostics.cli.commands.run import check_engine, checked_command
from stoker.diagnostics.cli.compared_reports import are_reports, compare_reports
from stoker.diagnostics.cli.lasting_output import interruptible
from stoker.diagnostics.cli.output import CommandError, StatusLine, console_of, print_json, print_table, seconds, size
from stoker.diagnostics.settings.engine_comparison import (
    ComparedFigure,
    EngineRounds,
    Spread,
    compared,
    conclusion,
    figures_as_dict,
)
from stoker.errors import ProgramFailedError

WORDS: dict[str, Callable[[float], str]] = {
    "waited": lambda value: f"{value:.1%}",
    "first batch": seconds,
    "CPU-s": lambda value: f"{value:.2f}",
    "memory": size,
    "GPU busy": lambda value: f"{value:.1%}",
}
"""By the figure: its value in words; others are numbers."""


def compare(
    context: typer.Context,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="SCRIPT [ARGS]... | BEFORE.html AFTER.html", show_default=False)
    ] = None,
    module: Annotated[str | None, typer.Option("-m", "--module", help="Run a module, as python -m does.")] = None,
    batches: Annotated[int | None, typer.Option(min=2, help="Batches of the loader in each run.")] = None,
    time: Annotated[float, typer.Option("--seconds", min=0.1, help="Without --batches: time of the first run.")] = 5.0,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each engine.")] = 3,
    loader: Annotated[str | None, typer.Option(metavar="FILE.py:LINE", help="The loader: the line that iterates.")] = (
        None
    ),
    report: Annotated[str | None, typer.Option(metavar="FILE", help="Of two reports: write both as one page.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Runs a PyTorch program under torch's engine and under Stoker's by turns, and shows the ratios.

    Two files BEFORE.html AFTER.html are reports of stoker run: they are compared, and nothing is run.

    Each run ends after the same number of batches of the loader in which most time is spent. The program does all that
    it does otherwise up to there, such as writing its log files. Its output is not shown.
    """
    if module is None and are_reports(command or []):
        for option, name in (
            ("--batches", "batches"),
            ("--seconds", "time"),
            ("--rounds", "rounds"),
            ("--loader", "loader"),
        ):
            if (source := context.get_parameter_source(name)) is not None and source.name != "DEFAULT":
                raise CommandError(f"{option} is for a script, and not for two reports: leave it out")
        compare_reports(command or [], report, as_json)
        return
    if report is not None:
        raise CommandError("--report is for two reports: stoker compare before.html after.html --report both.html")
    words = checked_command(command or [], module, "compare")
    check_engine("stoker")
    known = EngineRounds(words, batches, time, rounds, loader)
    failure: ProgramFailedError | None = None
    with StatusLine(sys.stderr, () if as_json else (sys.stdout,)) as line, interruptible() as interrupted:
        try:
            known.run(lambda state: line.show(f"stoker compare: {state}"))
        except ProgramFailedError as error:
            failure = error
    figures = compared(known.runs)
    if as_json and (figures or failure is None):
        print_json(as_dict(known, figures, bool(interrupted), failure))
    elif figures:
        show(console_of(sys.stdout), known, figures)
    if failure is not None:
        raise failure
    if interrupted:
        if not figures:
            sys.stderr.write("stoker: interrupted before both engines had run once\n")
        raise typer.Exit(128 + interrupted[0])


def as_dict(
    known: EngineRounds, figures: list[ComparedFigure], interrupted: bool, failure: ProgramFailedError | None
) -> dict[str, Any]:
    """Returns the comparison as plain JSON values."""
    return {
        "loader": known.about,
        "batches": known.batches,
        "rounds": len(known.runs) // 2,
        "interrupted": interrupted,
        "error": None if failure is None else str(failure),
        "figures": figures_as_dict(figures),
        "runs": [vars(run) for run in known.runs],
    }


def show(console: Console, known: EngineRounds, figures: list[ComparedFigure]) -> None:
    """Prints the table, and the conclusion below it."""
    about, rounds = known.about, len(known.runs) // 2
    console.print(
        f"{about['site']} {about['dataset']}, {about['num_workers']} workers: {known.batches:,} batches in each run, "
        f"{rounds} {'round' if rounds == 1 else 'rounds'}; median (least-most)"
    )
    console.print()
    print_table(console, [row(figure) for figure in figures])
    console.print()
    console.print(conclusion(figures, rounds))


def row(figure: ComparedFigure) -> dict[str, str]:
    """Returns the table's row of a figure."""
    words = WORDS.get(figure.name, lambda value: f"{value:,.0f}" if value >= 100 else f"{value:.3g}")
    return {
        "figure": figure.name,
        "torch": _spread(figure.torch, words),
        "Stoker": _spread(figure.stoker, words),
        "Stoker / torch": "" if figure.ratio is None else _spread(figure.ratio, lambda value: f"{value:.2f}"),
    }


def _spread(spread: Spread, words: Callable[[float], str]) -> str:
    """Returns the median and the range around it, with the unit once if it is the same."""
    middle, least, most = (words(value) for value in (spread.median, spread.least, spread.most))
    if least == most:
        return middle
    unit = middle.partition(" ")[2]
    if unit and least.endswith(f" {unit}") and most.endswith(f" {unit}"):
        least, most = least.removesuffix(f" {unit}"), most.removesuffix(f" {unit}")
    return f"{middle} ({least}-{most})"
