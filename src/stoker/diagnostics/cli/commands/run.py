"""`stoker run`: runs a PyTorch program as it is, and says of each of its loaders whether the program waits for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from stoker._core.first_use import HOMES
from stoker._core.machine import cpus
from stoker.diagnostics.cli.output import (
    CommandError,
    StatusLine,
    check_output,
    console_of,
    print_json,
    print_table,
    seconds,
    shown_command,
    size,
    written,
)
from stoker.diagnostics.measurements import LoaderSummary, Measurements, write_trace
from stoker.diagnostics.page.report_page import write_report
from stoker.diagnostics.run_findings import engine_lines, finding_lines
from stoker.diagnostics.run_result import as_dict, gpus_as_dicts
from stoker.diagnostics.verdict import verdict
from stoker.diagnostics.watched_program import ScriptRun, command_of

LOST = (
    "The records of the measurement were deleted while the program ran, in the folder for temporary files: what came "
    "after that was not measured. If the program cleans that folder, have it delete its own files only."
)

NONE = (
    "No loader was iterated over: there was no torch.utils.data.DataLoader and no stoker.DataLoader. A loader of "
    "another library is not measured."
)

FAILED = "It failed before a loader was iterated over: there is nothing to say about its loading."

FEW = 3
"""Looks at the processes, below which the most memory among them says nothing: the program had hardly begun."""

SHOWN = 8
"""Loaders that the table shows; JSON has all."""


def run(
    command: Annotated[list[str] | None, typer.Argument(metavar="SCRIPT [ARGS]...", show_default=False)] = None,
    module: Annotated[str | None, typer.Option("-m", "--module", help="Run a module, as python -m does.")] = None,
    engine: Annotated[
        Literal["torch", "stoker"],
        typer.Option(help="Measure the loaders as they are (torch), or with Stoker's engine in their place (stoker)."),
    ] = "torch",
    auto: Annotated[
        bool, typer.Option("--auto", help="With --engine stoker: find the number of workers while the program runs.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Write the report: one HTML file, which opens offline.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write the timeline as Chrome JSON, for ui.perfetto.dev.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; the program's output goes to stderr.")] = False,
) -> None:
    """Runs a PyTorch program as it is, and measures its data loaders.

    At its end a table shows for each loader how long the program waited for batches, and the change to make. The exit
    code is the program's. Programs that it starts (torchrun, mp.spawn) are measured too.
    """
    words = checked_command(command or [], module)
    check_engine(engine)
    if auto and engine != "stoker":
        raise CommandError("--auto finds the number of workers on Stoker's engine: add --engine stoker")
    check_output(report, "--report", "HTML", words[1])
    check_output(trace, "--trace", "JSON", words[1])
    stdout = sys.stderr.fileno() if as_json else None
    script = ScriptRun(words, engine, stdout, composition=as_json or report is not None, auto=auto)
    with StatusLine(sys.stderr, () if as_json else (sys.stdout,)) as line:
        code = script.run(lambda known: line.show(live(known)))
    known = script.measurements
    title = shown_command(["python", *words[1:]])
    try:
        if as_json:
            print_json({"exit_code": code, "engine": engine, **as_dict(known)})
        else:
            show(known, code, engine)
    finally:  # also if nobody reads the output any more
        failure = written(
            ("--report", report, lambda path: write_report(known, path, title, engine)),
            ("--trace", trace, lambda path: write_trace(known, path)),
        )
    if failure is not None:
        if not code:
            raise CommandError(failure)
        sys.stderr.write(f"stoker: {failure}\n")
    raise typer.Exit(code)


WITH_VALUES = {
    "run": ("--engine", "--report", "--trace"),
    "compare": ("--batches", "--seconds", "--rounds", "--loader", "--report"),
    "profile": ("--batches", "--loader", "--step-ms", "--workers", "--report", "--trace"),
    "tune": (
        "--step-ms",
        "--seconds",
        "--each",
        "--max-workers",
        "--batch-sizes",
        "--loader",
        "--engine",
        "--workers",
        "--plot",
    ),
}
"""By the command that takes `-m MODULE`: its other options with a value."""


def ended_after_module(arguments: list[str]) -> list[str]:
    """Returns the arguments with `--` after `run -m MODULE`: what follows belongs to the module, as with Python."""
    if arguments[:1] == [] or arguments[0] not in WITH_VALUES:
        return arguments
    place = 1
    while place < len(arguments) and arguments[place].startswith("-") and arguments[place] != "--":
        option = arguments[place]
        if option in ("-m", "--module") and place + 1 < len(arguments):
            return [*arguments[: place + 2], "--", *arguments[place + 2 :]]
        if _names_module(option):
            return [*arguments[: place + 1], "--", *arguments[place + 1 :]]
        place += 2 if option in WITH_VALUES[arguments[0]] else 1
    return arguments


def _names_module(word: str) -> bool:
    """Returns whether a word is an option with the module in it: `-mtrain`, as Python takes it, or `--module=train`."""
    return word.startswith("--module=") or (word.startswith("-m") and word != "-m")


def options_before_target(arguments: list[str]) -> list[str]:
    """Returns the arguments with `module:object` of `stoker profile` behind its options, which may stand anywhere.

    A script's own arguments stay where they are.
    """
    if arguments[:1] != ["profile"]:
        return arguments
    place = 1
    while place < len(arguments) and arguments[place].startswith("-"):
        place += 2 if arguments[place] in WITH_VALUES["profile"] else 1
    options = arguments[:place]
    if place >= len(arguments) or not is_target(arguments[place]) or {"-m", "--module"} & {*options}:
        return arguments
    if any(map(_names_module, options)):
        return arguments
    target, *rest = arguments[place:]
    return [*arguments[:place], *rest, target] if rest and rest[0].startswith("-") else arguments


def is_target(word: str) -> bool:
    """Returns whether a word is `module:object`, and no script."""
    return ":" in word and not os.path.exists(word)


def checked_command(arguments: list[str], module: str | None, name: str = "run") -> list[str]:
    """Returns the command to run.

    Args:
        arguments: the script and its arguments, or those of the module.
        module: in place of a script, or None.
        name: of Stoker's command, for the error.
    """
    if module is not None:
        return command_of(None, module, arguments)
    if not arguments:
        raise CommandError(f"name the script to run: stoker {name} train.py, or stoker {name} -m package.train")
    script, *rest = arguments
    if script.endswith(".ipynb"):
        raise CommandError(
            f"{script} is a notebook, and a script is needed: make one by jupyter nbconvert --to script {script}"
        )
    if not os.path.exists(script):
        folder = os.path.dirname(script) or "."
        names = os.listdir(folder) if os.path.isdir(folder) else []
        near = get_close_matches(os.path.basename(script), names, 1)
        hint = f"did you mean {os.path.join(os.path.dirname(script), near[0])}?" if near else "check the path"
        if not near and not script.endswith(".py"):
            hint = f"check the path, or run a module: stoker {name} -m {script}"
        raise CommandError(f"there is no script {script}: {hint}")
    if misplaced := _misplaced(script, rest, name):
        sys.stderr.write(
            f"stoker: {misplaced} stands behind {script}, so the script gets it: options of stoker {name} stand before "
            "the script\n"
        )
    return command_of(script, None, rest)


def _misplaced(script: str, arguments: Sequence[str], name: str) -> str | None:
    """Returns an option of Stoker's command among the arguments of a script that does not mention it; None for none."""
    options = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    ours = [one for one in options if one in (*WITH_VALUES[name], "--json")]
    try:
        text = Path(script).read_text(encoding="utf-8", errors="replace") if ours else ""
    except OSError:
        return None
    return next((one for one in ours if one[2:].replace("-", "_") not in text.replace("-", "_")), None)


def check_engine(engine: str) -> None:
    """Refuses Stoker's engine where this version cannot be installed under torch's loaders."""
    if engine == "stoker" and "install" not in HOMES:
        raise CommandError("--engine stoker needs stoker.install(), which this version lacks: use --engine torch")


def live(known: Measurements) -> str:
    """Returns the line that is shown while the program runs."""
    if not known.loaders:
        return "stoker run: no batch yet"
    latest = max(known.loaders, key=lambda loader: loader.epochs[-1].until).summary()
    return (
        f"stoker run: {latest.name}  {latest.batches:,} batches  {latest.rate:,.0f} samples/s  "
        f"waits {latest.share:.0%} of its time"
    )


def show(known: Measurements, code: int, engine: str = "torch") -> None:
    """Prints the table, the engine of the loaders, and the verdicts, to standard error."""
    console = console_of(sys.stderr)
    loaders = [loader.summary(known.samples, known.gpus) for loader in known.loaders]
    ended = "was interrupted" if known.interrupted else "ended" if code == 0 else f"failed with exit code {code}"
    whole = known.until - known.begun
    console.print()
    console.print(
        f"stoker run: the program {ended} after {seconds(whole)}; {known.cpu:.1f} CPU-seconds"
        + (
            f", at most {size(known.peak)} of memory in all its processes"
            if known.peak and len(known.samples) >= FEW
            else ""
        )
    )
    for gpu in gpus_as_dicts(known):
        busy = "" if gpu["busy"] is None else f", busy {gpu['busy']:.0%} of the program's time"
        held = "" if gpu["peak_memory"] is None else f", at most {size(gpu['peak_memory'])} of its memory in use"
        console.print(f"GPU {gpu['number']}: {gpu['name']}{busy}{held}")
    if known.lost:
        console.print(LOST)
    if not loaders:
        if not known.lost:
            console.print(FAILED if code and not known.interrupted else NONE)
        return
    console.print()
    most = sorted(loaders, key=lambda loader: -loader.spent)[:SHOWN]
    on_gpu = any(loader.gpu is not None for loader in most)
    print_table(console, [row(loader, on_gpu) for loader in loaders if loader in most])
    if len(loaders) > SHOWN:
        console.print(f"... and {len(loaders) - SHOWN} loaders with less time: --json shows all")
    for line in engine_lines(known) if engine == "stoker" else ():
        console.print(line)
    usable = cpus.cpus()
    verdicts = [(titled(loader), verdict(loader, usable.number, usable.quota)) for loader in most]
    for name, said in [one for one in verdicts if one[1].kind != "too short"] or verdicts[:1]:
        console.print()
        console.print(f"{name}: {said}")
    for line in finding_lines(known, known.loaders):
        console.print()
        console.print(line)


def titled(loader: LoaderSummary) -> str:
    """Returns the line that iterates, and beside it the one that made the loader."""
    made_at = loader.about.get("made_at")
    return loader.name if made_at in (None, loader.about["site"]) else f"{loader.name}, made at {made_at}"


def workers_of(about: dict[str, Any]) -> str:
    """Returns the number of workers: "4", with other machines "4 + 60", or "4 + 0-60" where they come as needed."""
    remote = about.get("remote_workers")
    more = "" if remote is None else f" + {'0-' * about['on_demand']}{remote}"
    return f"{about.get('num_workers')}{more}"


def row(loader: LoaderSummary, on_gpu: bool = False) -> dict[str, str]:
    """Returns the table's row of a loader, with the GPUs' share if the program used any."""
    times = f" x{loader.made}" if loader.made > 1 else ""
    return {
        "loader": f"{loader.name} {loader.about['dataset']}{times}",
        "workers": workers_of(loader.about),
        "epochs": f"{loader.epochs:,}",
        "batches": f"{loader.batches:,}",
        "samples/s": f"{loader.rate:,.0f}",
        "waited": f"{loader.share:.1%}",
        "first batch": seconds(loader.first),
        "CPU-s": f"{loader.cpu:.1f}",
        "memory": size(loader.peak) if loader.peak else "unknown",
        **({"GPU busy": "unknown" if loader.gpu is None else f"{loader.gpu:.0%}"} if on_gpu else {}),
    }
