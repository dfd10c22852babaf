"""Bytes of an engine's KV events to changes of the index, in the right order.

Pure: time is an argument, sockets are elsewhere.
"""
