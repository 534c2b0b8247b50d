"""The contents of a source of data: opened by its extension, and described from some of its samples."""
