"""Migration of reservations away from unfit ranks: execution of plans in the ledger.

rank_snapshot: ranks of a partition as plan input; movable_reservations: reservations of a rank
speed_estimates: learnt speeds and request properties, for plans and capacity estimates
migrator: executes plans, a bounded number of moves per turn, and keeps the events
"""
