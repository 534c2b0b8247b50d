"""Findings of a measured run beside its speed: faults of its loaders, and growth of its workers' memory."""
