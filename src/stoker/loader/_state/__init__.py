"""States of loaders: their format, and their conversion for other numbers of workers and ranks."""
