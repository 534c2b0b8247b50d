"""Fixtures that these tests have in common with `tests/loader`."""

from __future__ import annotations

from tests.loader.conftest import noisy, undisturbed

__all__ = ["noisy", "undisturbed"]
