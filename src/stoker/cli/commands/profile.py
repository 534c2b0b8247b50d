"""`stoker profile`: where the time of an epoch goes, by stage, sample, transform and worker."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from stoker.cli.command_error import CommandError
from stoker.cli.output import console_of, print_json, print_table
from stoker.cli.status_line import StatusLine
from stoker.diagnostics.target import find

if TYPE_CHECKING:
    from stoker.loader._profile.loader_profile import LoaderProfile
    from stoker.loader._profile.profiling import Profiling
    from stoker.loader.dataloader import DataLoader


def profile(
    loader: Annotated[str, typer.Argument(metavar="MODULE:LOADER", help="A loader, or a function that makes it.")],
    batches: Annotated[int, typer.Option(min=1, help="Batches to measure.")] = 100,
    step_ms: Annotated[
        float | None, typer.Option(min=0, help="Milliseconds of a training step, which is slept after each batch.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Another num_workers than the loader's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Shows where the time of an epoch goes, by stage, sample, transform and worker, and the change to make.

    Ctrl-C ends it with what was measured until then. Without --step-ms the loader is measured alone.
    """
    measured = ours(find(loader).loader, loader, workers)
    profiling: Profiling = measured.profile(batches, replay=0 if step_ms is None else None)
    with StatusLine(sys.stderr, () if as_json else (sys.stdout,)) as line, profiling:
        run(profiling, step_ms, lambda count: line.show(f"stoker profile: {count} of {batches} batches"))
    if as_json:
        print_json(profiling.result.as_dict())
    else:
        show(console_of(sys.stdout), profiling.result)


def ours(loader: Any, name: str, workers: int | None) -> DataLoader[Any]:
    """Returns the loader that is measured: a copy on Stoker's engine, of a torch loader too.

    Raises:
        CommandError: a dataset was named, or a loader that cannot be taken over.
    """
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


def show(console: Console, profile: LoaderProfile) -> None:
    """Prints a profile."""
    from stoker.loader._profile.profile_tables import heading, tables

    console.print(heading(profile))
    console.print()
    console.print(str(profile.verdict))
    for title, rows in tables(profile):
        console.print()
        console.print(title)
        print_table(console, rows)
