"""Pages in one HTML file that needs no network: reports of runs and profiles, the grid of settings, two reports."""
