"""Registered workers, and a table with one row of facts per rank.

New facts about ranks become columns of the table; load, blocks and decisions are elsewhere.
"""
