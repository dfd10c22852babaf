"""Bytes of a usual request to the bytes of its answer, in compiled calls.

What means the same to the ordinary path enters; at the first thing that is not usual the same bytes
go there, before anything was written, so nothing here ever describes an error.
"""
