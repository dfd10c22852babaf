"""Who holds which KV blocks.

Knows slots, tiers and hashes; has never heard of workers, models or HTTP.  Sockets and threads are
in `sockets`; machine code is made and kept on disk by `compiling` and `kernel_cache`.
"""
