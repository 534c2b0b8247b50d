"""Tar shards in the WebDataset layout: read in sequence, read at random through an index, and written."""
