"""Registered workers and their changes: the fleet, its partitions, and discovery."""
