"""Shares of the training loop's time that it may wait for batches: the limits of every verdict."""

from __future__ import annotations

WAITS = 0.2
"""Share of its time from which on a training loop counts as waiting for data."""

NEGLIGIBLE = 0.05
"""Share of its time up to which a training loop is bound by its own work."""
