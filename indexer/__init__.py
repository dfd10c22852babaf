"""Who holds which KV blocks.

Knows slots, tiers and hashes; has never heard of workers, models or HTTP.
"""
