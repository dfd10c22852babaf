"""Partitions: the ranks that serve one model and tenant, with their table, index and load.

Consequences of workers that join, change or leave belong here; consequences of requests belong in
`placement` and `admission`.
"""
