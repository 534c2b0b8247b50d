"""Writes datasets as tar shards, Parquet, LMDB or arrays, and measures the lengths of their samples."""
