"""Replication: events of other replicas, digests, and repair of differences.

New messages between replicas belong here. No sockets: bytes in, bytes out.
"""
