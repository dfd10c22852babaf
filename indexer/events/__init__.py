"""Bytes of an engine's KV events to changes of the index, in the right order.

What another engine says in its events enters here.  Pure: time is an argument, sockets are
elsewhere.
"""
