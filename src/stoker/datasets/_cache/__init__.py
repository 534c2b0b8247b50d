"""Storage of `CacheDataset`."""
