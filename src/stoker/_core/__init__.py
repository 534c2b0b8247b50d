"""What all parts of Stoker share, and nothing else."""
