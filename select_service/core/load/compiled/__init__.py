"""Kernels and memory layouts of the load accounting."""
