"""Adapters between the core and the world, one per file: replicas, engines, peers, files, timers.

Everything that waits for a socket, a file or a timer is in this package; decisions are made in the
core.  Outside of it, only `server`, `http` and `indexer.sockets` open sockets or files.
"""
