"""The threads and ZMQ sockets that receive KV events.

Nothing else of the indexer may import it.
"""
