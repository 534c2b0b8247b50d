"""What the workers of a measured program do: how long each batch takes to make."""
