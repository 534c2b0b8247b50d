"""MDS folders, as MosaicML Streaming writes them."""
