"""The rows of HDF5 files as a dataset by index."""
