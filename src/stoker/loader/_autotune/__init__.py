"""`num_workers="auto"`, and the hint that workers would help."""
