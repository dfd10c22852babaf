"""An index as a document and back: JSON and compact forms, and which of several dumps is believed.

A further form of a dump enters here.  No sockets, files or clocks: bytes in, bytes out.
"""
