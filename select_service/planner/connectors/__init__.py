"""Connectors that carry out decisions: over HTTP, in a file, in Kubernetes, or none (dry run).

A connector never chooses a count and never retries by itself: the next tick decides anew.
"""
