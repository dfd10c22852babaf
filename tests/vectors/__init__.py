"""Plays files of test vectors against the code: for scripts/play_vectors.

A format says by which keys its cases are known and how one is played; `formats` names them all.
"""
