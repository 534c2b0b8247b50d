"""What a source of data holds: opened by its extension, and described from some of its samples."""
