"""Tests of selectors, Serve and actors in real Ray clusters, in turn on this machine.

The tests run where Ray is installed, which is not the environment of the other tests:
scripts/test_ray.
"""
