"""Simulated engines and a workload, for the demo and for trials of the service.

The package uses the service only through its public API. The exception is `core_baseline`, which
runs the core in this process to compare another policy on the same workload.
"""
