"""The prefix tree of one partition: its arrays, its kernels, its snapshots.

Pure: no clock, thread or I/O; the lock is injected.
"""
