"""CUDA is initialised before the first test: what it opens stays open until the process ends."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def cuda_is_initialised() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        torch.zeros(1, device="cuda")
        torch.zeros(1, pin_memory=True)
