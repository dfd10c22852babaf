"""Tasks and transports around the core, one per file: replicas, engines, peers, files, timers.

Whatever must wait for a socket, a file or a time enters here; what is decided meanwhile is the
core's.  Beside it only `starting`, `http` and `indexer.sockets` have sockets or files.
"""
