"""Prefix tree of a partition: arrays, kernels and snapshots.

Facts about a block, or about the blocks of a slot, belong here.  Pure: no clock, thread or I/O.
"""
