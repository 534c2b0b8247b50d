"""The samples in the batches of a measured program: the order of an epoch, its classes, and its lengths."""
