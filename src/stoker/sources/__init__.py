"""Sources: datasets and streams that read files and stores where they lie. Each is one file or package."""
