"""Prometheus families over numbers that the core keeps.

Reads when scraped; nothing here is called per event.
"""
