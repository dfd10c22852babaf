"""Selectors, Serve and actors in real Ray clusters: one cluster at a time, on this machine.

They run where Ray is installed, which is not the environment of the other tests: scripts/test_ray.
"""
