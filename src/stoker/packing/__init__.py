"""Writes datasets as tar shards, Parquet, LMDB, arrays or HDF5, and measures the lengths of their samples."""
