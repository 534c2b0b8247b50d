"""`stoker profile`: where the time of an epoch goes, by stage, sample, transform and worker."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from stoker.diagnostics.cli.commands.run import checked_command, is_target
from stoker.diagnostics.cli.lasting_output import interruptible
from stoker.diagnostics.cli.output import (
    CommandError,
    StatusLine,
    check_output,
    console_of,
    print_json,
    print_table,
    seconds,
    shown_command,
    unwritten,
    written,
)
from stoker.diagnostics.measurements import Measurements
from stoker.diagnostics.page.html_file import write_profile
from stoker.diagnostics.profile.script_profiling import ScriptProfiling
from stoker.diagnostics.target import find
from stoker.errors import ProgramFailedError

if TYPE_CHECKING:
    from stoker.diagnostics.profile.loader_profile import LoaderProfile
    from stoker.diagnostics.profile.profiling import Profiling
    from stoker.diagnostics.profile.script_profiling import ScriptProfile
    from stoker.loader.dataloader import DataLoader


def profile(
    target: Annotated[
        list[str] | None, typer.Argument(metavar="MODULE:LOADER | SCRIPT [ARGS]...", show_default=False)
    ] = None,
    module: Annotated[str | None, typer.Option("-m", "--module", help="Run a module, as python -m does.")] = None,
    batches: Annotated[int, typer.Option(min=1, help="Batches to measure.")] = 100,
    loader: Annotated[str | None, typer.Option(metavar="FILE.py:LINE", help="A script's loader, by its line.")] = None,
    step_ms: Annotated[
        float | None,
        typer.Option(min=0, help="With MODULE:LOADER: milliseconds of a training step, slept after each batch."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="With MODULE:LOADER: another num_workers than the loader's.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write the report: one HTML file, which opens offline.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="With MODULE:LOADER: write the timeline as Chrome JSON, for ui.perfetto.dev.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Shows where the time of an epoch goes, by stage, sample, transform and worker, and the change to make.

    A SCRIPT is run as it is, with Stoker's engine under its loaders, and ended after some batches of one of them.
    MODULE:LOADER names a loader, or a function that makes one: without --step-ms it is measured alone. Ctrl-C ends
    either with what was measured until then.
    """
    words = target or []
    script = words[0] if module is None and words else None
    check_output(report, "--report", "HTML", script)
    check_output(trace, "--trace", "JSON", script)
    if module is None and words and is_target(words[0]):
        if len(words) > 1:
            raise CommandError(f"{words[1]} is left over: {words[0]} takes no arguments")
        if loader is not None:
            raise CommandError("--loader is for a script: module:loader names the loader itself")
        _profile_target(words[0], batches, step_ms, workers, report, trace, as_json)
        return
    for value, option in ((step_ms, "--step-ms"), (workers, "--workers")):
        if value is not None:
            raise CommandError(f"{option} is for module:loader: a script has a step, and workers, of its own")
    if trace is not None:
        raise CommandError("--trace is for module:loader: stoker run --trace writes the timeline of a script")
    _profile_script(checked_command(words, module, "profile"), batches, loader, report, as_json)


def _profile_target(
    name: str,
    batches: int,
    step_ms: float | None,
    workers: int | None,
    report: Path | None,
    trace: Path | None,
    as_json: bool,
) -> None:
    measured = ours(find(name).loader, name, workers)
    replay = 0 if step_ms is None else None
    profiling: Profiling = measured.profile(batches, replay=replay, stacks=report is not None, trace=trace)
    lost = None
    try:
        with StatusLine(sys.stderr, () if as_json else (sys.stdout,)) as line, profiling:
            run(profiling, step_ms, lambda count: line.show(f"stoker profile: {count} of {batches} batches"))
    except OSError as error:
        if trace is None or error.filename != str(trace):
            raise
        lost = unwritten("--trace", trace, error)
    try:
        if as_json:
            print_json(profiling.result.as_dict())
        else:
            show(console_of(sys.stdout), profiling.result)
    finally:
        failure = written(("--report", report, lambda path: write_profile(profiling.result, path, name)))
    if said := "; ".join(filter(None, (lost, failure))):
        raise CommandError(said)


def _profile_script(words: list[str], batches: int, loader: str | None, report: Path | None, as_json: bool) -> None:
    profiling = ScriptProfiling(words, batches, loader, stacks=report is not None)
    with StatusLine(sys.stderr, () if as_json else (sys.stdout,)) as line, interruptible() as interrupted:
        profiling.run(lambda known: line.show(live(known, batches)))
    found = profiling.result
    said = [] if found is None else remarks(found, bool(interrupted), profiling.failure is not None)
    failure = None
    if found is not None:
        profile, title = found.profile, shown_command(["python", *words[1:]])
        try:
            if as_json:
                print_json({**found.as_dict(), "error": profiling.failure, "interrupted": bool(interrupted)})
            else:
                show(console_of(sys.stdout), profile, said)
        finally:
            failure = written(("--report", report, lambda path: write_profile(profile, path, title, said)))
    if failure is not None:
        if profiling.failure is None and not interrupted:
            raise CommandError(failure)
        sys.stderr.write(f"stoker: {failure}\n")
    if interrupted:
        if found is None:
            sys.stderr.write("stoker: interrupted before a loader gave a batch\n")
        raise typer.Exit(128 + interrupted[0])
    if profiling.failure is not None:
        raise ProgramFailedError(f"the program failed: {profiling.failure}")


def live(known: Measurements, batches: int) -> str:
    """Returns the line that is shown while a program runs."""
    if not known.loaders:
        return "stoker profile: no batch yet"
    latest = max(known.loaders, key=lambda loader: loader.epochs[-1].until).summary()
    return f"stoker profile: {latest.name}  {latest.batches:,} of {batches:,} batches"


def ours(loader: Any, name: str, workers: int | None) -> DataLoader[Any]:
    """Returns the loader that is measured: a copy on Stoker's engine, of a torch loader too."""
    if loader is None:
        raise CommandError(f"{name} is a dataset: name the loader, or a function that makes it")
    from stoker.loader.dataloader import DataLoader  # imports torch, and other commands do without

    changes = {} if workers is None else {"num_workers": workers}
    if isinstance(loader, DataLoader) and not changes:
        return loader
    try:
        return DataLoader.from_torch(loader, **changes)
    except TypeError as error:
        raise CommandError(f"{name} cannot be measured: {error}") from error


def run(profiling: Profiling, step_ms: float | None, tell: Callable[[int], None]) -> None:
    """Runs the loop, up to its end or Ctrl-C."""
    try:
        for count, _ in enumerate(profiling, 1):
            tell(count)
            if step_ms:
                time.sleep(1e-3 * step_ms)
    except KeyboardInterrupt:
        sys.stderr.write("stoker: interrupted; this was measured until then.\n")


SHOWN = 4
"""Other loaders that are named."""


def show(console: Console, profile: LoaderProfile, said: Sequence[str] = ()) -> None:
    """Prints a profile.

    Args:
        console: for it.
        profile: of a loader.
        said: of the program, below the verdict.
    """
    from stoker.diagnostics.profile.loader_profile import heading, tables

    console.print(heading(profile))
    console.print()
    console.print(str(profile.verdict))
    for text in said:
        console.print()
        console.print(text)
    for title, rows in tables(profile):
        console.print()
        console.print(title)
        print_table(console, rows)


def remarks(found: ScriptProfile, interrupted: bool, failed: bool) -> list[str]:
    """Returns sentences on the program and on the measurement."""
    name = found.site if found.rank is None else f"{found.site} of rank {found.rank}"
    if found.refused is None:
        place = "" if found.is_own else ", which was put in the place of torch's"
        said = [f"The loop at {name}, measured on Stoker's engine{place}."]
    else:
        said = [
            f"The loop at {name}, measured on torch's engine, which tells no stages and samples. Stoker's engine was "
            f"not used: {found.refused}."
        ]
    if interrupted:
        said.append("Interrupted: this was measured until then.")
    elif found.ended_by is not None:
        said.append(
            f"The program was ended because {found.ended_by} had given {found.wanted} batches. --loader {found.site} "
            "measures more of this one."
        )
    elif not found.is_over and not failed:
        said.append(
            f"The program ended before its loader had given {found.wanted} batches: --batches "
            f"{max(1, found.profile.batches)} is enough for steps on a held batch."
        )
    if found.inferred is not None:
        said.append(f"The gain at most is inferred from the waits, and not measured: {found.inferred}.")
    if found.others:
        named = [f"{site} ({seconds(waited)})" for site, waited in found.others[:SHOWN]]
        more = f", and {len(found.others) - SHOWN} more" if len(found.others) > SHOWN else ""
        said.append(
            f"The program waited less for its other loaders up to there: {', '.join(named)}{more}. "
            f"--loader {found.others[0][0]} profiles another one."
        )
    return said
