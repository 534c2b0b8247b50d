"""Random generators: found, seeded for each sample, and read back."""
