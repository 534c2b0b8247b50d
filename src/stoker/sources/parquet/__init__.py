"""Parquet files: rows by index, and as a stream."""
