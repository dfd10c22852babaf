"""Kubernetes access of the connector: requests, state of targets, writes, one lease."""
