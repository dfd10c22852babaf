"""What other replicas tell: their events, digests, and the repair of differences.

No sockets; bytes in, bytes out.
"""
