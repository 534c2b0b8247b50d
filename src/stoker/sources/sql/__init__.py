"""Rows of SQL queries: by index, and as a stream."""
