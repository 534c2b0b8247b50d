"""Processes: what forked and spawned workers have in common."""
