"""Measurements of loaders and checks of a machine: what is slow, why, and the change to make."""
