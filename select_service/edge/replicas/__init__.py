"""The replica plane on the wire: ZMQ sockets, peer lists over HTTP, its log lines."""
