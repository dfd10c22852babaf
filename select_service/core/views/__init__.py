"""Plain numbers and texts for metrics, reports, dumps and refusals.

What somebody wants to see of the core enters here; nothing is changed.
"""
