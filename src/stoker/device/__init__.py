"""Batches on their way to a device: pinned memory."""
