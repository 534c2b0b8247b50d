"""Tests of images run with the compiled decoder and without it, where it is there."""

from __future__ import annotations

import pytest

pytest.importorskip("PIL")

from stoker.images import kernel


@pytest.fixture
def by_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the compiled decoder."""
    monkeypatch.setattr(kernel, "_found", lambda: (None, "a test does without it"))


@pytest.fixture(params=["compiled", "pillow"])
def either_way(request: pytest.FixtureRequest) -> str:
    """With the compiled decoder, and without."""
    if request.param == "pillow":
        request.getfixturevalue("by_pillow")
    elif kernel.bound() is None:
        pytest.skip(kernel.backend())
    return str(request.param)


@pytest.fixture
def compiled() -> kernel.Kernel:
    """The compiled decoder."""
    found = kernel.bound()
    if found is None:
        pytest.skip(kernel.backend())
    return found
