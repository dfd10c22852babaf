"""Tasks and transports around the core, one per file.

The only room of the service with sockets, files and timers.
"""
