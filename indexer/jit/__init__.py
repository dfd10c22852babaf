"""Compiler, cache and loader of kernels, and the helpers that kernels share."""
