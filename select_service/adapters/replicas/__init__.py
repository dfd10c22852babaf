"""Transport of the replica protocol: ZMQ sockets, peer lists over HTTP, log lines.

`core.replication` defines messages and their effects; this package only transports messages.
"""
