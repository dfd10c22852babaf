"""Proposers: from load and from forecast throughput to replica counts."""
