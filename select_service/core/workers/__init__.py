"""Which workers are registered, and one row of plain facts for each of their ranks.

What a later feature knows of a rank enters as a column of the table; load, blocks and choices are
elsewhere.
"""
