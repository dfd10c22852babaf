"""Replica counts of a role: stabilisation and start-up times."""
