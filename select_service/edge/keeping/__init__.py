"""The index over the end of a process: downloads from peers, and the snapshot file.

Another place to begin from or to keep it in enters here; what a dump says is in `indexer.dumps`.
"""
