"""From a prompt to a rank: hashes, terms, cost, choice.

Only reads load and index.
"""
