"""What a loader shows: a progress bar, and the images of a batch."""
