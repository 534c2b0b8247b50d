"""Operations on batches of images: tensors on the CPU or a device, with random numbers for each sample."""
