"""Who may pass: busy thresholds, the waiting queue, priority tiers.

A further reason to refuse a request or to let it wait enters here; which rank a request gets does
not.
"""
