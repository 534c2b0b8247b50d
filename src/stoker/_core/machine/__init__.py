"""What this machine, container and Python allow: CPUs, memory, cgroups, and how busy GPUs are."""
