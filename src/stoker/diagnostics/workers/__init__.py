"""The work of the workers of a measured program: how long each batch takes to make."""
