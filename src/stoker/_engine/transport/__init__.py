"""Batches between processes: the arena, its slots, and leases of delivered batches."""
