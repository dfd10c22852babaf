"""Tokens to block hashes and sequence hashes.

Pure; numpy, xxhash and compiled loops only.
"""
