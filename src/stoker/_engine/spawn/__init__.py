"""Spawned workers, where there is no fork."""
