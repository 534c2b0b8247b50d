"""What other platforms lack is done without: their code path, on Linux."""

from __future__ import annotations

import os

import numpy as np
import pytest

import stoker
from stoker._core.machine import timer
from stoker._engine.backends import choose_start_method

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")


class Images:
    """Samples large enough for slots."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, object]:
        return {"image": np.full((100, 100), index, np.float32), "index": index}


@needs_fork
@pytest.mark.parametrize(
    "missing", [["memfd_create"], ["pidfd_open"], ["memfd_create", "pidfd_open", "posix_fallocate"]], ids="+".join
)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_loader_works_without_linux_only_functions(
    missing: list[str], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in missing:
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.setattr(timer, "_kernel", lambda: None)
    loader = stoker.DataLoader(Images(), batch_size=8, num_workers=2, output="numpy", multiprocessing_context=method)
    batches = [(batch["image"].copy(), batch["index"]) for batch in loader]
    assert [list(indices) for _, indices in batches] == [list(range(start, start + 8)) for start in (0, 8, 16)]
    assert all((images[:, 0, 0] == indices).all() for images, indices in batches)


def test_no_zygote_is_used_without_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork", raising=False)
    chosen = choose_start_method(None)
    assert (chosen.forked, chosen.zygote) == (False, False)
    assert "no fork" in chosen.why
