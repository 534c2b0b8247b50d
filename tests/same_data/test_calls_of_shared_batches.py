"""Batches that several workers make: each sample is asked for once, also where rows do not go together."""

from __future__ import annotations

from typing import Any


def unlike_rows(data: Any) -> Any:
    import os

    import numpy as np

    calls = os.open("calls", os.O_RDWR | os.O_CREAT)

    class Records(data.Dataset):  # type: ignore[misc]
        """The dtype of a sample that is not like the others changes its batch."""

        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> Any:
            os.write(calls, bytes([index]))
            odd = index % 16 == 5
            return np.full((40, 40), index, np.uint8), index, index / 2 if odd else index

    batches = list(data.DataLoader(Records(), batch_size=32, num_workers=2))
    return batches, sorted(os.pread(calls, 1000, 0))


def test_rows_that_do_not_fit_are_asked_for_once(same: Any) -> None:
    theirs, _ = same(unlike_rows)
    assert theirs.result is not None
