"""What is torch's: loaders that are taken over, torch.compile and torch.profiler."""
