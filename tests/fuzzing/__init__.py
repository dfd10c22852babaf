"""Fuzzing of every parser, guided by coverage; scripts/fuzz starts it.

Each check takes bytes and raises for a fault: an exception that the parser does not promise, or two
readers that disagree. Checks import what they examine, so that the import can be instrumented.
"""
