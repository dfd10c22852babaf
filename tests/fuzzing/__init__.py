"""Fuzzing of every parser, guided by coverage; started by scripts/fuzz.

A check takes bytes and raises for a fault: an exception that the parser does not promise, or two
readers that disagree. Checks import the examined modules, so that the import can be instrumented.
"""
