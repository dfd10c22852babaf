"""The threads and ZMQ sockets that receive KV events.

What must wait for an engine enters here; what its messages mean does not.  Nothing else of the
indexer may import it.
"""
