"""`stoker index`: writes the indexes of tar shards, once before a job of many processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from stoker.diagnostics.cli.output import CommandError, StatusLine, print_json
from stoker.errors import StokerError
from stoker.sources.places import places_of
from stoker.sources.urls import shown


@dataclass(frozen=True)
class IndexedShard:
    """The result for a shard.

    Attributes:
        index: the place of its index; None if it failed.
        samples: in it; None if it failed, or if its index is not on this machine.
        is_new: whether the index was written now.
        error: why it has no index; None if it has one.
    """

    shard: str
    index: str | None = None
    samples: int | None = None
    is_new: bool = False
    error: str | None = None


def index(
    shards: Annotated[list[str], typer.Argument(metavar="SHARDS...", help="Paths, glob or brace patterns.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Make indexes anew that exist.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Writes an index beside each tar shard, which gives TarDataset its length, its shuffle and random access."""
    try:
        places = places_of(shards, "shards")
    except (OSError, ValueError) as error:
        raise CommandError(str(error)) from error
    found: list[IndexedShard] = []
    with StatusLine(sys.stderr, (sys.stdout,)) as line:
        for one in _indexed(places, overwrite):
            found.append(one)
            line.show(f"{len(found)} of {len(places)} shards, {_samples(found):,} samples")
    failed = [one for one in found if one.error is not None]
    if as_json:
        totals = {"samples": _samples(found), "written": sum(one.is_new for one in found), "failed": len(failed)}
        print_json({**totals, "shards": [asdict(one) for one in found]})
    else:
        for one in failed:
            sys.stderr.write(f"stoker: {one.shard}: {one.error}\n")
        written = sum(one.is_new for one in found)
        kept = len(found) - written - len(failed)
        sys.stdout.write(f"{len(found)} shards, {_samples(found):,} samples: ")
        sys.stdout.write(f"{written} indexes written, {kept} kept, {len(failed)} failed\n")
    raise typer.Exit(1 if failed else 0)


def _indexed(places: list[str], overwrite: bool) -> Iterator[IndexedShard]:
    from stoker.sources.tar.index import SUFFIX, index_shards, loaded  # imports torch; other commands do without

    for place in places:
        is_new = overwrite or not os.path.exists(place + SUFFIX)
        try:
            (made,) = index_shards([place], overwrite)
        except (StokerError, OSError) as error:
            yield IndexedShard(shown(place), error=str(error))
            continue
        samples = len(loaded(made)) if os.path.exists(made) else None
        yield IndexedShard(shown(place), shown(made), samples, is_new)


def _samples(found: list[IndexedShard]) -> int:
    return sum(one.samples or 0 for one in found)
