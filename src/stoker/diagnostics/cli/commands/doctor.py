"""`stoker doctor`: settings of this machine or a dataset that make loading slow, fail, or repeat random numbers."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from stoker.diagnostics.cli.output import console_of, print_json
from stoker.diagnostics.target import find

if TYPE_CHECKING:
    from stoker.diagnostics.checks.finding import Finding

MARKS = {"fine": "ok", "advice": "advice", "problem": "PROBLEM"}
INDENT = 8


def doctor(
    dataset: Annotated[
        str | None,
        typer.Option(metavar="MODULE:OBJECT", help="Also check a dataset, a loader, or a function that makes one."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 if there is a problem, for CI and probes.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Checks what makes loading slow, fail or repeat random numbers, and says what mends it."""
    from stoker.diagnostics import checks  # imports torch: other commands start without it

    target = None if dataset is None else find(dataset)
    found = []
    console = console_of(sys.stdout)
    for finding in checks.findings(target):
        found.append(finding)
        if not as_json:
            show(console, finding)
    problems = sum(finding.level == "problem" for finding in found)
    if as_json:
        print_json({"problems": problems, "findings": [vars(finding) for finding in found]})
    else:
        advice = sum(finding.level == "advice" for finding in found)
        console.print(f"{problems} problems, {advice} pieces of advice, {len(found) - problems - advice} fine")
    raise typer.Exit(1 if check and problems else 0)


def show(console: Console, finding: Finding) -> None:
    """Prints a finding."""
    style = {"problem": "bold red", "advice": "yellow"}.get(finding.level, "green")
    console.print(f"{MARKS[finding.level]:<8}", style=style, end="")
    lines = [f"{finding.name}: {finding.what}", finding.why, f"-> {finding.mend}" if finding.mend else ""]
    text = "\n".join(textwrap.fill(line, console.width - INDENT) for line in lines if line)
    console.print(textwrap.indent(text, " " * INDENT).lstrip())
