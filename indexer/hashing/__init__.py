"""Tokens to block hashes and sequence hashes.

What makes a block another block enters here.  Pure; numpy, xxhash and compiled loops only.
"""
