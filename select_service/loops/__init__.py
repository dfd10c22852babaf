"""Connections that compiled code serves on threads of its own, without the interpreter.

A loop accepts, reads, answers usual requests of `POST /select` and sends; every connection on which
anything else comes in goes to the event loop, with the bytes that were read, and comes back once it
asks for such requests alone.  Only Linux, only where --input-loops asks for it.
"""
