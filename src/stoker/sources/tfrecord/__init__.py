"""TFRecord files: records by index, and as a stream."""
