"""Arrays in files: `.npy`, `.npz`, raw numbers, safetensors and Zarr."""
