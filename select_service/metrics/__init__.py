"""Prometheus families over numbers that the core keeps.

A further family enters as a row of a table.  Read when scraped; nothing here is called per event.
"""
