"""The index over the end of a process: downloads from peers, and the snapshot file.

One task does first one and then the other.
"""
