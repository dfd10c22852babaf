"""Placement: prompt hashes, candidates, cost terms, costs and the choice of a rank.

Placement only reads the rank table, the load and the index.  A new policy needs a record and a
file of kernels; booking stays the same for every policy.
"""
