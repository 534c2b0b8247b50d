"""Streams: places, copies and shares of them, for the datasets that are streams."""
