"""Plain numbers for metrics, reports and dumps.

Reads the core and changes nothing.
"""
