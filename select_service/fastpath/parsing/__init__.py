"""Kernels that parse the head and the body of common requests."""
