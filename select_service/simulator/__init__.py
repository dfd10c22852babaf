"""Simulated engines and a workload, for the demo and for trying the service.

Knows the service only from outside, through its public API.
"""
