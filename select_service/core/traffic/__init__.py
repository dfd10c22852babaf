"""Traffic observation for autoscalers: counts in slots of one second, over the last hour.

`traffic_counters` reads counters of kernels and gate, `time_slots` stores their differences,
`window_sums` adds them, `rank_loads` lists the ranks, `traffic_observer` joins the parts.
Placements and bookings call nothing here, except to report why a request got no rank.
"""
