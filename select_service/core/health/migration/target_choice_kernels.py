"""Compiled choice of the migration target of a reservation among all ranks.

The cost formula is that of `move_cost`, which exists in readable form for reports.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.jit.decorators import READ_ONLY, compiled

I64 = np.int64

ROOM, WAITING, RATE, SETUP_MS, BANDWIDTH, WEIGHT, FIELDS = range(7)
"""Columns of a target: free blocks (-inf excludes the target), waiting prefill tokens, prefill rate
in tokens/s, setup time and bandwidth of the link, weight.
"""
MOVE_FIELDS = 6
BEGIN, END, TOKENS, BLOCK_SIZE, BLOCK_BYTES, CARRY_MS_MAX = range(MOVE_FIELDS)
"""Fields of a move: range of targets to try first, tokens to move, tokens per block, bytes per
shard (negative excludes transfers), and the time limit of a transfer in ms.
"""
MS, IS_CARRIED, MISSING, OVERLAP, IS_NEAR, RESULTS = range(6)
"""Fields of a choice: ms until the request continues, whether its cache is transferred, missing
blocks, overlapping blocks, and whether the target is among those tried first.
"""


@compiled(forceinline=True)
def _price_target(targets, at, overlap, move):
    """Return the cost in ms, and whether the cache is transferred."""
    tokens, block_size = I64(move[TOKENS]), I64(move[BLOCK_SIZE])
    new = max(tokens - overlap * block_size, 0)
    ms = (targets[at, WAITING] + new) / targets[at, RATE] * 1000.0
    if move[BLOCK_BYTES] < 0:
        return ms, False
    missing = max(-(-tokens // block_size) - overlap, 0)
    carry_ms = 0.0
    if missing > 0:
        shard_bytes = missing * I64(move[BLOCK_BYTES])
        carry_ms = targets[at, SETUP_MS] + shard_bytes / targets[at, BANDWIDTH] * 1000.0
    return (carry_ms, True) if carry_ms <= move[CARRY_MS_MAX] and carry_ms < ms else (ms, False)


@compiled()
def _find_cheapest(targets, begin, end, move, overlap, allowed):
    """Return the first of the cheapest targets; -1 if no target has room."""
    best, found = np.inf, I64(-1)
    blocks = -(-I64(move[TOKENS]) // I64(move[BLOCK_SIZE]))
    for at in range(begin, end):
        if targets[at, ROOM] < blocks or (len(allowed) > 0 and not allowed[at]):
            continue
        have = I64(overlap[at]) if len(overlap) > 0 else I64(0)
        ms, _ = _price_target(targets, at, have, move)
        # The weight only affects the comparison; the reported time is the undivided one.
        ms /= targets[at, WEIGHT]
        if ms < best:
            best, found = ms, I64(at)
    return found


@compiled(
    f"int64(float64[:, ::1], float64[::1], {READ_ONLY.format('int32')},"
    f" {READ_ONLY.format('boolean')}, float64[::1])"
)
def choose_target(targets, move, overlap, allowed, results):
    """Choose and book a target for the tokens of a move; -1 if no target has room.

    targets: [n, FIELDS], sorted by rank, so that the first rank wins at equal cost
    move: [MOVE_FIELDS]
    overlap: [n], cached blocks at each target; empty means no overlap
    allowed: [n]; empty means all
    results: [RESULTS], written
    """
    at = _find_cheapest(targets, I64(move[BEGIN]), I64(move[END]), move, overlap, allowed)
    is_near = at >= 0
    if at < 0:
        at = _find_cheapest(targets, I64(0), targets.shape[0], move, overlap, allowed)
    if at < 0:
        return at
    have = I64(overlap[at]) if len(overlap) > 0 else I64(0)
    ms, is_carried = _price_target(targets, at, have, move)
    tokens, size = I64(move[TOKENS]), I64(move[BLOCK_SIZE])
    blocks = -(-tokens // size)
    # Booked in the working copy, so that later moves of the plan see less room and more queue.
    targets[at, ROOM] -= blocks
    if not is_carried:
        targets[at, WAITING] += max(tokens - have * size, 0)
    results[MS], results[IS_CARRIED], results[IS_NEAR] = ms, is_carried, is_near
    results[MISSING], results[OVERLAP] = max(blocks - have, 0), have
    return at
