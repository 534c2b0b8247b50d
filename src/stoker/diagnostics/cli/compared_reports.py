"""`stoker compare before.html after.html`: two reports of `stoker run` as a table of ratios, and as a page."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from stoker.diagnostics.cli.output import (
    CommandError,
    check_output,
    console_of,
    print_json,
    print_table,
    seconds,
    size,
    written,
)
from stoker.diagnostics.page.html_file import Report, read_report, write_page
from stoker.diagnostics.page.report_pair import (
    PairedFigure,
    ReportPair,
    as_dict,
    conclusion,
    figures,
    page_data,
    paired,
    remarks,
)

WORDS: dict[str, Callable[[float], str]] = {
    "number": lambda value: f"{value:,.0f}" if value >= 100 else f"{value:.3g}",
    "share": lambda value: f"{value:.1%}",
    "seconds": seconds,
    "bytes": size,
}
"""By the unit of a figure: its value in words."""


def are_reports(words: Sequence[str]) -> bool:
    """Returns whether the arguments of `stoker compare` name reports, and not a script."""
    return bool(words) and words[0].lower().endswith((".html", ".htm"))


def compare_reports(words: Sequence[str], report: str | None, as_json: bool) -> None:
    """Prints the comparison of two reports, and writes the page.

    Args:
        words: the two files; options may follow them.
        report: of `--report`, where it stands before them.
        as_json: of `--json`, where it stands before them.
    """
    files, report, as_json = _options(words, report, as_json)
    if len(files) != 2:
        raise CommandError(f"two reports are compared, not {len(files)}: stoker compare before.html after.html")
    before, after = (_read(file) for file in files)
    if os.path.samefile(*files):
        raise CommandError(f"{files[0]} and {files[1]} are the same file: name the reports of two runs")
    if report is not None:
        check_output(report, "--report")
        if any(os.path.exists(report) and os.path.samefile(report, file) for file in files):
            raise CommandError(f"--report {report} would replace a report that is compared: name another file")
    known = paired(before, after)
    try:
        if as_json:
            print_json(as_dict(known))
        else:
            show(console_of(sys.stdout), known)
    finally:
        failure = written(("--report", None if report is None else Path(report), lambda path: _write(known, path)))
    if failure is not None:
        raise CommandError(failure)


def _write(known: ReportPair, path: str) -> None:
    title = " and ".join(report["file"] for report in known.reports)
    write_page(path, "pair", "stoker compare", "Comparison", title, page_data(known))


def _options(words: Sequence[str], report: str | None, as_json: bool) -> tuple[list[str], str | None, bool]:
    files, left = [], list(words)
    while left:
        word = left.pop(0)
        if word == "--json":
            as_json = True
        elif word == "--report":
            if not left:
                raise CommandError("--report needs the name of a file: --report both.html")
            report = left.pop(0)
        elif word.startswith("--report="):
            report = word.removeprefix("--report=")
        elif word.startswith("-"):
            raise CommandError(f"{word} is for a script, and not for two reports: see stoker compare --help")
        else:
            files.append(word)
    return files, report, as_json


def _read(file: str) -> Report:
    try:
        return read_report(file)
    except OSError as error:
        raise CommandError(f"{file} cannot be read ({error.strerror}): check the path") from error
    except ValueError as error:
        raise CommandError(str(error)) from error


def show(console: Console, known: ReportPair) -> None:
    """Prints a table for each loader, the verdicts, and the conclusion."""
    before, after = known.reports
    names = (before["file"], after["file"])
    if names[0] == names[1]:
        names = ("before", "after")
    for pair in known.pairs:
        one, other = known.loaders(pair)
        workers = f"{one['settings'].get('num_workers')} and {other['settings'].get('num_workers')} workers"
        console.print(
            f"{one['name']} {one['settings']['dataset']}, {workers}, {before['engine']} and {after['engine']}"
        )
        console.print()
        print_table(console, [row(figure, names) for figure in figures(one, other)])
        console.print()
        for name, loader in zip(names, (one, other), strict=True):
            console.print(f"{name}: {loader['text']}{' ' + loader['change'] if loader['change'] else ''}")
        console.print()
    for remark in remarks(known):
        console.print(remark)
    console.print(conclusion(known))


def row(figure: PairedFigure, names: tuple[str, str]) -> dict[str, str]:
    """Returns the table's row of a figure."""

    def words(value: float | None) -> str:
        return "unknown" if value is None else WORDS[figure.unit](value)

    return {
        "figure": figure.name,
        names[0]: words(figure.before),
        names[1]: words(figure.after),
        "ratio": "" if figure.ratio is None else f"{figure.ratio:.2f}",
    }
