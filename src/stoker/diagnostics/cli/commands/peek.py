"""`stoker peek`: the contents of a source of data."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from stoker.diagnostics.cli.output import CommandError, check_writable, console_of, print_json, print_table, size
from stoker.errors import StokerError

if TYPE_CHECKING:
    from stoker.diagnostics.peek.fields import ClassBalance, FieldSummary
    from stoker.diagnostics.peek.source_peek import SourcePeek

CLASSES = 10
"""Classes that are shown; JSON has all."""

COLUMNS = 5
"""Fields up to which each has a column in the table of the first samples."""

FAILURES = 3
"""Samples that cannot be read and are shown."""


def peek(
    source: Annotated[str, typer.Argument(help="MODULE:OBJECT, a folder, a file, or a pattern such as 'train-*.tar'.")],
    samples: Annotated[int, typer.Option(min=1, help="Samples to look at.")] = 64,
    query: Annotated[str | None, typer.Option(help="The rows of an SQLite database.")] = None,
    sheet: Annotated[str | None, typer.Option(metavar="FILE.png", help="Write a contact sheet of images.")] = None,
    images: Annotated[int, typer.Option(min=1, help="Images on the contact sheet.")] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Shows the contents of a source of data: number of samples, fields, shapes, types and classes.

    Exits with 1 if one of the samples looked at cannot be read.
    """
    # here, since they import torch, which the other commands do without
    from stoker.diagnostics.peek import source_peek
    from stoker.diagnostics.peek.open_source import open_source

    if sheet is not None:
        check_writable(sheet, "--sheet")
    try:
        opened = open_source(source, query)
    except StokerError:
        raise
    except (OSError, ValueError) as error:
        raise CommandError(f"{source} cannot be opened: {error}") from error
    found = source_peek.peek(opened, samples)
    if sheet is not None:
        source_peek.write_sheet(opened, sheet, images)
    if as_json:
        print_json(found.as_dict())
    else:
        show(console_of(sys.stdout), found, sheet)
    raise typer.Exit(1 if found.failed else 0)


def show(console: Console, found: SourcePeek, sheet: str | None) -> None:
    """Prints the findings."""
    number = "an unknown number of" if found.count is None else f"{found.count:,}"
    console.print(f"{found.name}: {found.kind}; {number} samples")
    if not found.looked:
        console.print("There is no sample to look at.")
        return
    whole = "" if not found.count else f", some {size(found.sample_bytes * found.count)} in all"
    console.print(f"{found.looked:,} samples were looked at; {size(found.sample_bytes)} for each{whole}")
    good = found.looked - len(found.failed)
    if found.fields:
        console.print()
        print_table(console, [field_row(field, good) for field in found.fields.values()])
    if found.balance is not None:
        console.print()
        show_classes(console, found.balance)
    if found.first:
        console.print()
        print_table(console, first_rows(found))
    if found.failed:
        console.print()
        console.print(f"{len(found.failed):,} of {found.looked:,} samples cannot be read:", style="bold red")
        for index, error in found.failed[:FAILURES]:
            console.print(f"  {index}: {error}")
    if sheet is not None:
        console.print(f"\nThe contact sheet is {sheet}")
    elif found.has_images:
        console.print("\nFor a contact sheet of its images: --sheet peek.png")


def field_row(field: FieldSummary, samples: int) -> dict[str, str]:
    """Returns the table's row of a field."""
    absent = samples - field.count
    notes = [f"{absent:,} lack it"] if absent else []
    notes += [f"{field.missing:,} None"] if field.missing else []
    return {
        "field": field.path or "(sample)",
        "type": " or ".join(field.types),
        "dtype": " or ".join(field.dtypes),
        "shape": field.shape,
        "range": field.range,
        "bytes": size(field.size / max(1, field.count)),
        "note": ", ".join(notes),
    }


def first_rows(found: SourcePeek) -> list[dict[str, str]]:
    """Returns the table of the first samples: a column for each field, or one for all if there are many."""
    paths = list(dict.fromkeys(path for _, _, fields in found.first for path in fields))
    rows = []
    for index, said, fields in found.first:
        row = {"sample": str(index) if said is None else f"{index}  {said.removeprefix(f'sample {index}: ')}"}
        if len(paths) <= COLUMNS:
            row |= {path or "value": fields.get(path, "") for path in paths}
        else:
            row["fields"] = ", ".join(f"{path} {value}" for path, value in fields.items())
        rows.append(row)
    return rows


def show_classes(console: Console, balance: ClassBalance) -> None:
    """Prints the largest and the smallest classes."""
    of = "all" if balance.is_whole else "the samples looked at"
    uneven = (
        f"; the largest has {balance.ratio:,.1f} times the samples of the smallest" if len(balance.counts) > 1 else ""
    )
    console.print(f"{len(balance.counts):,} classes ({balance.source}, of {of}){uneven}")
    counts = list(balance.counts.items())
    shown = counts if len(counts) <= CLASSES else [*counts[: CLASSES // 2], *counts[-(CLASSES // 2) :]]
    width = max(len(name) for name, _ in shown)
    most = max(balance.counts.values())
    for place, (name, count) in enumerate(shown):
        if len(counts) > CLASSES and place == CLASSES // 2:
            console.print(f"  ... {len(counts) - len(shown):,} others")
        bar = "#" * max(count > 0, round(min(20, max(0, console.width - width - 22)) * count / most))
        console.print(f"  {name:<{width}}  {count:>8,}  {count / balance.samples:>6.1%}  {bar}")
