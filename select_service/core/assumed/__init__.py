"""Assumed blocks: prompt blocks that a rank should hold after computing the prompt of a booking.

Ranks without KV events have no other index.  Beside events, assumed blocks bridge the time until
the engine announces a block.

assumed_blocks: blocks of a partition, with an order of eviction per rank
assumed_size: number of blocks that a rank is assumed to keep
pending_prompts: prompts beside events that the engine has not announced yet
rank_modes: which ranks assume blocks, and for how long
assumption_follower: listener of the ledger that fills and empties the blocks
reported_hits: cached tokens reported by callers, compared with the prediction
"""
