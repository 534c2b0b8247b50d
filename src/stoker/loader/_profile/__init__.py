"""`DataLoader.profile()`: where the time of an epoch goes, and what there is to gain at most."""
