"""Conversion of an index to a document and back, in JSON and compact form; selection among dumps.

Further forms of a dump belong here.  No sockets, files or clocks: bytes in, bytes out.
"""
