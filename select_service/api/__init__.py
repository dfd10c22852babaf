"""Thin handlers, one file per noun, and the documents that follow from the routes.

They decode, call the core, encode.
"""
