"""A loader's figures in the trackers of experiments: a file for each, which takes the tracker's own object."""
