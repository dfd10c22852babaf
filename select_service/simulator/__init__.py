"""Simulated engines and a workload.

Knows the service only from outside, through its public API.
"""
