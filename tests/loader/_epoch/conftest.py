"""Fixtures that these tests have in common with `tests/loader`."""

from __future__ import annotations

from tests.loader.conftest import noisy, other_workers, rolled, undisturbed

__all__ = ["noisy", "other_workers", "rolled", "undisturbed"]
