"""Which workers and ranks there are, and the partitions that they form."""
