"""Kernels of our own for GPUs, in Triton; each module is imported where a device is about to run it."""
