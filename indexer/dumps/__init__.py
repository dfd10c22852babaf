"""An index as a document and back: JSON and compact forms, and which of several dumps is believed.

No sockets, no files.
"""
