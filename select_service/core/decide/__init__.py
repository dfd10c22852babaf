"""From a prompt to a rank: hashes, candidates, terms, costs, choice.

Only reads table, load and index.  A further policy is a file of its own here; bookings are not.
"""
