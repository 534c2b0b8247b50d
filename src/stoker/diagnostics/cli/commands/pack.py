"""`stoker pack`: a dataset or an image folder as tar shards, Parquet, LMDB, arrays or HDF5."""

from __future__ import annotations

import os
import re
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stoker.diagnostics.cli.output import CommandError, print_json, samples_bar, size
from stoker.diagnostics.target import find

if TYPE_CHECKING:
    from stoker.packing.pack import PackResult

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


class PackFormat(StrEnum):
    """The values of `--format`."""

    tar = "tar"
    parquet = "parquet"
    lmdb = "lmdb"
    npy = "npy"
    hdf5 = "hdf5"


def pack(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="An image folder, or module:dataset.")],
    destination: Annotated[str, typer.Argument(metavar="DEST", help="A folder that is empty or does not exist.")],
    format: Annotated[PackFormat, typer.Option(help="What is written.")] = PackFormat.tar,
    workers: Annotated[int | None, typer.Option(min=0, help="Processes; one for each CPU if not given.")] = None,
    max_count: Annotated[int, typer.Option(min=1, help="Samples of a shard.")] = 10_000,
    max_size: Annotated[str, typer.Option(help="Bytes of a tar shard: 500MB, 1GiB.")] = "1GiB",
    verify: Annotated[bool, typer.Option("--verify", help="Read all back, and compare.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Writes a dataset as tar shards, Parquet, LMDB, arrays or HDF5. The same command goes on after a kill."""
    from stoker.packing import pack as packing  # these import torch, and other commands do without
    from stoker.sources.image_folder import ImageFolder

    dataset = ImageFolder(source) if os.path.isdir(source) else _dataset(source)
    limit = bytes_of(max_size)
    with samples_bar("packing") as show:
        try:
            done = packing.pack(
                dataset,
                destination,
                format=format.value,
                num_workers=workers,
                max_count=max_count,
                max_size=limit,
                verify=verify,
                on_progress=show,
            )
        except KeyboardInterrupt:
            raise CommandError("interrupted: the same command goes on where complete files end") from None
        except OSError as error:
            raise CommandError(str(error)) from error
    _print(done, as_json)


def _print(done: PackResult, as_json: bool) -> None:
    written = done.samples - done.began_at
    rate = written / done.seconds if written else 0.0
    if as_json:
        print_json(
            {
                "samples": done.samples,
                "began_at": done.began_at,
                "files": done.files,
                "bytes": done.bytes,
                "seconds": done.seconds,
                "samples_per_second": rate,
                "verified": done.verified,
            }
        )
        return
    many = f"{len(done.files):,} files" if len(done.files) > 1 else done.files[0]
    again = f", from sample {done.began_at:,} on" if 0 < done.began_at < done.samples else ""
    said = f"{rate:,.0f} samples/s{again}" if written else "all was written before"
    checked = "; read back and equal" if done.verified else ""
    sys.stdout.write(f"{done.samples:,} samples in {many}, {size(done.bytes)}, {said}{checked}\n")


def _dataset(source: str) -> Any:
    if ":" not in source:
        raise CommandError(f"there is no folder {source}: name an image folder, or a dataset as module:object")
    return find(source).dataset


def bytes_of(text: str) -> int:
    """Returns a size such as `500MB` or `1GiB` as a number of bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]I?|)B?", text.strip().upper())
    if match is None or not float(match[1]):
        raise CommandError(f"{text!r} is no size: write a number of bytes, such as 500MB or 1GiB")
    return int(float(match[1]) * _UNITS[match[2]])
