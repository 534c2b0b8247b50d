"""`stoker check`: goes once through all samples of a dataset, and writes the bad ones to a quarantine file."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from stoker.diagnostics.cli.output import CommandError, print_json, samples_bar
from stoker.diagnostics.target import find

SHOWN = 10
"""Bad samples that are printed; the file has all."""


def check(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A folder, a file, a pattern, or module:dataset.")],
    out: Annotated[str, typer.Option(help="The quarantine file that is written.")] = "bad-samples.jsonl",
    labels: Annotated[int | None, typer.Option(min=1, help="Number of classes: labels are 0 to N-1.")] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Processes; one for each CPU if not given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fetches each sample of a dataset once; writes missing, damaged and inconsistent ones to a quarantine file.

    The exit code is 1 if there are any. After Ctrl-C or a kill the same command goes on.
    """
    import stoker  # these import torch, and other commands do without
    from stoker._core.machine.cpus import cpus
    from stoker.diagnostics.checks.every_sample import check_samples

    dataset = _dataset(source)
    number = cpus().number if workers is None else workers
    with samples_bar("checking") as show:
        try:
            done = check_samples(dataset, out, workers=number, labels=labels, on_progress=show)
        except KeyboardInterrupt:
            raise CommandError("interrupted: the same command goes on from there") from None
        except OSError as error:
            raise CommandError(str(error)) from error
    found = stoker.quarantine(out)
    if as_json:
        bad = [{"index": one.index, "description": one.description, "why": one.exception} for one in found]
        print_json({"samples": done.samples, "began_at": done.began_at, "found": done.found, "bad": bad})
    elif done.found:
        sys.stdout.write(f"{done.found:,} of {done.samples:,} samples are bad.\n{found!r}\n")
        for one in found.records[:SHOWN]:
            said = f" ({one.description})" if one.description else ""
            sys.stdout.write(f"sample {one.index}{said}: {str(one.exception).splitlines()[0]}\n")
        sys.stdout.write(f'To train without them: dataset = stoker.quarantine("{out}").without(dataset)\n')
    else:
        sys.stdout.write(f"{done.samples:,} samples, and none is missing, damaged or inconsistent.\n")
    raise typer.Exit(1 if done.found else 0)


def _dataset(source: str) -> Any:
    import stoker

    module, colon, _ = source.partition(":")
    if colon and not os.path.exists(source) and "/" not in module.replace(".py", "") and "://" not in source:
        return find(source).dataset
    try:
        return stoker.open_dataset(source)
    except FileNotFoundError as error:
        raise CommandError(f"there is no file, no folder and no module:object {source!r}") from error
