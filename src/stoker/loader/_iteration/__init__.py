"""The steps of an epoch in the trainer, which the iterator joins."""
