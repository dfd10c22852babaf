"""KV events of an engine: from bytes to changes of the index, in the right order.

Event formats of further engines belong here.  Pure: time is an argument, sockets are elsewhere.
"""
