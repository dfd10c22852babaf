"""The prefix tree of one partition: its arrays, its kernels, its snapshots.

What must be known of a block or of a slot's blocks enters here.  Pure: no clock, thread or I/O.
"""
