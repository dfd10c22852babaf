"""Simulated engines and a workload, for the demo and for trying the service.

Knows the service only from outside, through its public API; `core_baseline` alone has the core in
this process, to show what another policy of it does with the same workload.
"""
