"""The default collation, compiled for the structure of the first batch."""
