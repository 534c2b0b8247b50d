"""Searches and measurements of the settings of a loader: `stoker tune` and `stoker bench`."""
