"""Leaves of a batch: arrays and tensors, and the memory that they are written into."""
