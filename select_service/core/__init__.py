"""Core of the service: decisions, and the state behind these.

Pure: no socket, thread, clock, log or environment; callers pass time and randomness.
"""
