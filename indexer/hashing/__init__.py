"""Block hashes and sequence hashes of token sequences.

Every input that makes two blocks differ belongs here.  Pure: numpy, xxhash and compiled loops.
"""
