"""What other replicas tell: their events, digests, and the repair of differences.

A further message between replicas enters here.  No sockets; bytes in, bytes out.
"""
