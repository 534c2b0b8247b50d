from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest

from stoker.sources.arrays.dataset import ArrayDataset
from stoker.sources.arrays.zarr_rows import result_of


async def named(name: str) -> list[str]:
    """Returns the names of the threads that call functions which are handed to threads."""
    return list(await asyncio.gather(*(asyncio.to_thread(lambda: threading.current_thread().name) for _ in range(3))))


async def refused() -> None:
    await asyncio.to_thread(int, "no number")


def test_functions_are_called_in_the_calling_thread() -> None:
    before = threading.active_count()
    assert result_of(named("a")) == [threading.current_thread().name] * 3
    assert threading.active_count() == before


def test_errors_pass_through() -> None:
    with pytest.raises(ValueError, match="no number"):
        result_of(refused())


def test_beside_a_running_loop_a_thread_reads_and_ends() -> None:
    async def main() -> tuple[list[str], int]:
        with pytest.raises(ValueError, match="no number"):
            result_of(refused())
        return result_of(named("a")), threading.active_count()

    before = threading.active_count()
    names, count = asyncio.run(main())
    assert set(names) == {"stoker: one read of zarr"} and count == before


def test_zarr_is_read_in_a_notebook(written_by_zarr: Path) -> None:
    async def main() -> object:
        return ArrayDataset(written_by_zarr / "group2.zarr")[2]["deep/y"]

    assert asyncio.run(main()) == np.int64(20)
