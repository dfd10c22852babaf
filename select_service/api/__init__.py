"""Thin handlers, one file per noun, and the documents that follow from the routes.

A further endpoint enters here, declared above its handler.  Handlers decode, call the core, encode.
"""
