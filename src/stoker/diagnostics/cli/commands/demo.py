"""`stoker demo`: photographs through torch's loader, and through Stoker's, on this machine."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stoker._core.machine import cpus
from stoker.diagnostics.cli.lasting_output import interruptible
from stoker.diagnostics.cli.output import CommandError, StatusLine, console_of, print_json, print_table, seconds, size
from stoker.diagnostics.demo import CLASSES, DemoError, ProgramFigures, compare, make_pictures

NAMES = {
    "torch": "torch's DataLoader",
    "install": "the same, after stoker.install()",
    "stoker": "stoker.ImageFolder and its transforms",
}


def demo(
    images: Annotated[int, typer.Option(min=128, help="Pictures to make.")] = 1000,
    workers: Annotated[int | None, typer.Option(min=1, help="Workers of each loader; else one for each CPU.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each program.")] = 3,
    keep: Annotated[str | None, typer.Option(metavar="FOLDER", help="Keep the pictures here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Loads made photographs by torch's loader and by Stoker's, and shows how fast each is on this machine.

    Each program loads an epoch of random crops, without a training step, in a process of its own.
    """
    for package, extra in {"torch": "torch", "PIL": "images"}.items():
        if importlib.util.find_spec(package) is None:
            raise CommandError(f"the demo needs {package}, which is not installed: pip install 'stoker[{extra}]'")
    if keep is not None and os.path.isdir(keep) and (others := {*os.listdir(keep)} - {*CLASSES}):
        told = f"--keep {keep}: it holds {min(others)!r}, which is no picture of the demo: name a new folder"
        raise CommandError(told)
    number = cpus.cpus().number if workers is None else workers
    with tempfile.TemporaryDirectory(prefix="stoker-demo-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary if keep is None else keep)
        figures: list[ProgramFigures] = []
        with StatusLine(sys.stderr, () if as_json else (sys.stdout,)) as line, interruptible() as interrupted:
            try:
                written = make_pictures(
                    folder, images, lambda done, count: line.show(f"stoker demo: picture {done} of {count}")
                )
            except OSError as error:
                told = f"the pictures cannot be written to {folder}: {error.strerror}. Name another folder: --keep"
                raise CommandError(told) from error
            try:
                figures = compare(
                    str(folder),
                    number,
                    rounds,
                    lambda program, runs: line.show(f"stoker demo: {NAMES[program]}, run {runs + 1} of {3 * rounds}"),
                )
            except DemoError as error:
                raise CommandError(str(error)) from error
    if interrupted:
        sys.stderr.write("stoker: interrupted before all programs had run\n")
        raise typer.Exit(128 + interrupted[0])
    if as_json:
        about = {"images": images, "bytes": written, "workers": number, "rounds": rounds}
        print_json(about | {"programs": [vars(each) for each in figures]})
    else:
        show(
            console_of(sys.stdout), figures, f"{images:,} pictures of {size(written / images)}, {number} workers", keep
        )


def show(console: Console, figures: list[ProgramFigures], about: str, keep: str | None) -> None:
    """Prints the table, and the next step."""
    first = figures[0]
    console.print(f"{about}; random crops of 224 x 224 by {first.crops}; medians")
    console.print()
    rows = []
    for each in figures:
        faster = each.images_per_second / first.images_per_second
        rows.append(
            {
                "program": NAMES[each.program],
                "images/s": f"{each.images_per_second:,.0f}",
                "of torch's": f"{faster:.2f}",
                "CPU-s per 1,000": f"{each.cpu_seconds_per_1000:.2f}",
                "first batch": seconds(each.first_batch_seconds),
            }
        )
    print_table(console, rows)
    console.print()
    equal = next(each.equal_pixels for each in figures if each.equal_pixels is not None)
    console.print(
        "Decoded pixels were compared with Pillow's: they are equal."
        if equal
        else "Decoded pixels were compared with Pillow's: THEY DIFFER. This is a fault: please report it."
    )
    if keep is not None:
        console.print(f"The pictures are in {keep}.")
    console.print("In a program of yours, it is one line: import stoker; stoker.install()")
