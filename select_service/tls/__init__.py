"""TLS, of both sides: which files there are, what is made of them, and the handshakes of a server.

What is read again while the process runs is `edge.tls_watch`'s.
"""
