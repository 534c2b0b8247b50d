"""Measurements of loaders and checks of a machine: the slow part, its cause, and the change to make."""
