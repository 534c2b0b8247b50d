"""Limits of this machine, container and Python: CPUs, memory, cgroups, and how busy GPUs are."""
