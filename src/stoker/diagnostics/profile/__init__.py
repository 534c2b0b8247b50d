"""`DataLoader.profile()`: where the time of an epoch goes, and the gain that is possible at most."""
