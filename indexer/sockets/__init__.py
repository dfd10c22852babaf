"""Threads and ZMQ sockets that receive KV events.

Code that must wait for an engine belongs here, the meaning of messages does not.  Nothing else of
the indexer may import this package.
"""
