"""The commands of `stoker`, a module for each."""
