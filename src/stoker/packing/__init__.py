"""Writes datasets as tar shards, Parquet, LMDB or arrays."""
