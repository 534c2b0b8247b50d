"""Pools: the ranks of a job share workers on other machines, which make their units by turns."""
