"""`DataLoader` and its iterator: where the data side and the engine meet."""
