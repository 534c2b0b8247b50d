"""A worker's job: the samples of a unit are fetched, seeded, shared out and collated."""
