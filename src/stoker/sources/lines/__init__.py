"""Text files of records: lines, JSON Lines and CSV, by index and as streams."""
