"""Admission: busy thresholds, the waiting queue, and priority tiers.

New reasons to refuse or queue a request belong here; the choice of a rank does not.
"""
