"""Pages in one HTML file that needs no network: the report, the grid of settings, two reports side by side."""
