"""Who is busy with what: active load per slot, and the reservations it comes from.

Only what the ledger writes enters; whom a request goes to is decided elsewhere.
"""
