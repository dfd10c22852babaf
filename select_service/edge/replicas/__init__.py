"""The replica plane on the wire: ZMQ sockets, peer lists over HTTP, its log lines.

What a message means and what follows from it is in `core.replicas`; only carrying it enters here.
"""
