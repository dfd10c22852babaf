"""Who is busy with what: active load per slot, and the reservations it comes from."""
