"""Reservations leave ranks that are no longer fit: plans carried out in the ledger.

targets: the ranks of a partition as a plan sees them;  movables: the reservations of one rank
pace: what ranks and requests have shown, for plans and for capacity
mover: carries plans out, a bounded number of moves a turn, and keeps the events
"""
