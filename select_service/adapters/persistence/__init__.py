"""Persistence across restarts: index recovery from peers, the snapshot file and small state files.

New sources or stores are added here; the format of dumps is in `indexer.dumps`.
"""
