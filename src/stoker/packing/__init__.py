"""Writes datasets as tar shards, Parquet, LMDB, arrays or HDF5."""
