"""Random generators: their discovery, a seed for each sample, and their states."""
