"""What the batches of a measured program hold: the order of an epoch, its classes, and its lengths."""
