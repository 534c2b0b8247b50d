"""The parts of `stoker.install()`: one file for each thing that it changes."""
