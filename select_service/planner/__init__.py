"""Autoscaler of deployments, in a process beside the selector.

The core decides (pure: the time is an argument), the runtime observes and serves, connectors
scale, the report draws pages, and the replay repeats decisions.
"""
