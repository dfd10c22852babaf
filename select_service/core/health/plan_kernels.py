"""Choosing where one reservation goes, among all ranks, in one compiled call.

The prices are those of `move_cost`, which says them for people.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import READ_ONLY, compiled

I64 = np.int64

ROOM, WAITING, RATE, SETUP_MS, BANDWIDTH, WEIGHT, FIELDS = range(7)
"""Of a target: blocks that it may take (-inf: it takes nobody), prefill tokens before it and a
second, of its link, and its weight."""
MS, IS_CARRIED, MISSING, OVERLAP, IS_NEAR, RESULTS = range(6)
"""Of a choice: until the request goes on; is its cache carried over; blocks that are missing, that
are there; was it found among those that were to be tried first."""


@compiled(forceinline=True)
def _price(targets, at, tokens, overlap, block_size, block_bytes, carry_ms_max):
    """Milliseconds, and whether it is carried over."""
    new = max(tokens - overlap * block_size, 0)
    ms = (targets[at, WAITING] + new) / targets[at, RATE] * 1000.0
    if block_bytes < 0:
        return ms, False
    missing = max(-(-tokens // block_size) - overlap, 0)
    carry_ms = 0.0
    if missing > 0:
        carry_ms = targets[at, SETUP_MS] + missing * block_bytes / targets[at, BANDWIDTH] * 1000.0
    return (carry_ms, True) if carry_ms <= carry_ms_max and carry_ms < ms else (ms, False)


@compiled()
def _cheapest(targets, begin, end, overlap, allowed, tokens, size, block_bytes, carry_ms_max):
    """The first of the cheapest; -1: nobody has room."""
    best, found = np.inf, I64(-1)
    blocks = -(-tokens // size)
    for at in range(begin, end):
        if targets[at, ROOM] < blocks or (len(allowed) > 0 and not allowed[at]):
            continue
        have = I64(overlap[at]) if len(overlap) > 0 else I64(0)
        ms, _ = _price(targets, at, tokens, have, size, block_bytes, carry_ms_max)
        ms /= targets[at, WEIGHT]
        if ms < best:
            best, found = ms, I64(at)
    return found


@compiled(
    f"int64(float64[:, ::1], int64, int64, {READ_ONLY.format('int32')},"
    f" {READ_ONLY.format('boolean')}, int64, int64, int64, float64, float64[::1])"
)
def choose(targets, begin, end, overlap, allowed, tokens, size, block_bytes, carry_ms_max, results):
    """Choose a target for so many tokens, in blocks of `size`, and book them there; -1: nobody has
    room, and nothing is booked.

    targets:     [n, FIELDS], by rank, so that the first name wins where prices are the same
    begin, end:  those that are tried first
    overlap:     [n], blocks that each has; or nothing: none
    allowed:     [n]; or nothing: all
    block_bytes: of one shard; negative: caches cannot be carried over
    results:     [RESULTS], written
    """
    terms = (overlap, allowed, tokens, size, block_bytes, carry_ms_max)
    at = _cheapest(targets, begin, end, *terms)
    is_near = at >= 0
    if at < 0:
        at = _cheapest(targets, 0, targets.shape[0], *terms)
    if at < 0:
        return at
    have = I64(overlap[at]) if len(overlap) > 0 else I64(0)
    ms, is_carried = _price(targets, at, tokens, have, size, block_bytes, carry_ms_max)
    blocks = -(-tokens // size)
    targets[at, ROOM] -= blocks
    if not is_carried:
        targets[at, WAITING] += max(tokens - have * size, 0)
    results[MS], results[IS_CARRIED], results[IS_NEAR] = ms, is_carried, is_near
    results[MISSING], results[OVERLAP] = max(blocks - have, 0), have
    return at
