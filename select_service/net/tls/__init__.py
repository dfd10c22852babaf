"""TLS of both sides: certificate files, SSL contexts, and the handshakes of the server.

`adapters.reload.tls_watch` reloads the files while the process runs.
"""
