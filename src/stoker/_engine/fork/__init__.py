"""Forked workers: the zygote and its trainer's side."""
