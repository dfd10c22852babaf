"""The only I/O of the indexer: the threads and ZMQ sockets that receive KV events.

Nothing else of the indexer may import it.
"""
