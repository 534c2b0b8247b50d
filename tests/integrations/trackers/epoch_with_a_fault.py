"""A loader whose epoch left one sample out, for the tests of trackers."""

from __future__ import annotations

import warnings
from typing import Any

import stoker


class Breaks(stoker.Dataset[int]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        if index == 7:
            raise ValueError("broken")
        return index


def run(**options: Any) -> stoker.DataLoader[Any]:
    loader = stoker.DataLoader(Breaks(), batch_size=4, on_error="skip", max_errors=None, max_error_rate=None, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stoker.StokerWarning)  # about the sample
        for _ in loader:
            pass
    return loader
