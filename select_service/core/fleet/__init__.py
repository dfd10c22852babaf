"""Partitions: which ranks serve one model and tenant, with their table, index and load.

Whatever follows from a worker that comes, changes or goes enters here; what a request asks of a
partition stays in `decide` and `admission`.
"""
