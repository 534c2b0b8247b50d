"""The databases: how each is opened and asked."""
