"""Decisions and the state they need.

Pure: no socket, thread, clock, log or environment; time and randomness are given.
"""
