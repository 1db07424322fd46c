"""Kernels of our own for GPUs, in Triton; import each module only if a device is about to run it."""
