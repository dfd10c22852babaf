"""Prometheus metric families over counters of the core.

A new family is a row of a table.  Families are read at scrape time; nothing is called per event.
"""
