"""Active load of each slot, and the reservations behind the load.

Only the ledger writes here; the choice of a rank belongs to the placement.
"""
