"""Player of test-vector files for scripts/play_vectors.

A format recognises its cases by their keys and plays a case; `formats` lists all formats.
"""
