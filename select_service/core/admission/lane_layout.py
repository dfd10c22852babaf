"""Columns of the rows of a lane table.

A row begins with the place of the lane's first request in the order of service, as four integers
that compare like the order itself, and ends with the candidates of both legs, one bit per slot.
"""

ORDER_LENGTH = 4
FLOW = ORDER_LENGTH
"""Number of the flow in its class."""
IS_PINNED, IS_CONSTRAINED = FLOW + 1, FLOW + 2
BITS = FLOW + 3
"""First word of the candidates: as many words as the table is wide, for each leg."""
LEGS = 2
