"""Who holds which KV blocks.

Knows slots, tiers and hashes; has never heard of workers, models or HTTP.  Sockets and threads are
in `sockets`; the modules beside the rooms make, keep and link machine code, or are words of all.
"""
