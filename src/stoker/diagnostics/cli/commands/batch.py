"""`stoker batch`: which samples made a batch, of any step, epoch and rank, computed in a moment."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from stoker.diagnostics.cli.output import CommandError, print_json
from stoker.diagnostics.target import Target, find
from stoker.extend import describe


def batch(
    loader: Annotated[str, typer.Argument(metavar="MODULE:LOADER", help="A loader, or a function that makes it.")],
    step: Annotated[int, typer.Option(min=0, help="The batch: counted over all epochs, or in that of --epoch.")],
    epoch: Annotated[int | None, typer.Option(min=0, help="The epoch, counted from 0.")] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Whose batch, with distributed=.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Shows which samples made a batch: for a loss that jumps, or is NaN, at a known step."""
    target = find(loader)
    _check_is_known(target)
    number, k = place_of(target.loader, step) if epoch is None else (epoch, step)
    try:
        indices = target.loader.batch_indices(number, k, rank=rank)
    except (IndexError, ValueError) as error:
        raise CommandError(str(error)) from error
    said = [describe(target.dataset, index) for index in indices]
    if as_json:
        samples = [_plain(index, text) for index, text in zip(indices, said, strict=True)]
        print_json({"epoch": number, "batch": k, "rank": rank, "samples": samples})
        return
    sys.stdout.write(f"epoch {number}, batch {k}, {len(indices)} samples\n")
    for index, text in zip(indices, said, strict=True):
        sys.stdout.write(f"{index}\n" if text is None else f"{index}  {text}\n")


def place_of(loader: Any, step: int) -> tuple[int, int]:
    """Returns the epoch, and the batch in it, of a step that is counted over all epochs."""
    try:
        length = len(loader)
    except (TypeError, NotImplementedError):
        length = 0
    if not length:
        raise CommandError("the loader has no length: name the epoch, and the batch in it: --epoch 0 --step 12")
    return divmod(step, length)


def _check_is_known(target: Target) -> None:
    """Refuses a loader without an order of Stoker's."""
    if target.loader is None:
        raise CommandError(f"{target.name} is a dataset: name the loader, or a function that makes it")
    if not hasattr(target.loader, "batch_indices"):
        raise CommandError(
            f"{target.name} is a {type(target.loader).__module__.partition('.')[0]} loader, whose order cannot be "
            "computed: from stoker import DataLoader, and pass seed="
        )


def _plain(index: Any, text: Any) -> dict[str, Any]:
    plain = {"index": index if isinstance(index, int | str) else repr(index)}
    return plain if text is None else {**plain, "description": str(text)}
