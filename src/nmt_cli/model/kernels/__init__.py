"""Triton kernels for CUDA, imported only where a GPU is used."""
