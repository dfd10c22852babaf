"""Compiled loops over the blocks of a pool.

A block is a small integer that identifies its content and everything before the block.

    blocks   int32[3, n + 1]  rows by block, the last column is the head of the ring:
        REFERENCES     -1: not cached; 0: cached and idle; above: number of references
        OLDER, NEWER   list of idle blocks in the order of release: predecessor and successor
    numbers  int64[4]         CACHED blocks, of which IDLE; TAILS, places without content; PLACES
"""

# The decorator erases the signature, so that checking types here would prove nothing.
# mypy: ignore-errors

from indexer.jit.decorators import compiled

REFERENCES, OLDER, NEWER = range(3)
CACHED, IDLE, TAILS, PLACES = range(4)
STORED, EVICTED = range(2)


@compiled("int64(int32[::1], int32[::1])")
def count_leading_cached(references, chain):
    """Return the number of leading cached blocks of the chain."""
    for at in range(chain.shape[0]):
        if references[chain[at]] < 0:
            return at
    return chain.shape[0]


@compiled("int64(int32[::1], int32[::1])")
def count_idle_among(references, chain):
    """Return the number of cached blocks of the chain without a reference."""
    found = 0
    for at in range(chain.shape[0]):
        if references[chain[at]] == 0:
            found += 1
    return found


@compiled()
def _unlink(blocks, block):
    older, newer = blocks[OLDER], blocks[NEWER]
    newer[older[block]] = newer[block]
    older[newer[block]] = older[block]


@compiled("int64(int32[:, ::1], int64[::1])")
def evict_oldest(blocks, numbers):
    """Evict the block with the longest idle time and return the block."""
    block = blocks[NEWER, blocks.shape[1] - 1]
    _unlink(blocks, block)
    blocks[REFERENCES, block] = -1
    numbers[CACHED] -= 1
    numbers[IDLE] -= 1
    return block


@compiled("UniTuple(int64, 3)(int32[:, ::1], int64[::1], int32[::1], int64, int64, int32[:, ::1])")
def take_blocks(blocks, numbers, chain, first, end, changes):
    """Reference the blocks of the chain from `first` to `end`, as far as there are places.

    changes: int32[2, places], receives the positions in the chain of the blocks that were not
        cached (STORED), and the evicted blocks (EVICTED)
    Returns (end of the referenced part, number stored, number evicted).
    """
    references, stored, evicted = blocks[REFERENCES], changes[STORED], changes[EVICTED]
    n_stored, n_evicted = 0, 0
    for at in range(first, end):
        block = chain[at]
        if references[block] < 0:
            if numbers[CACHED] + numbers[TAILS] >= numbers[PLACES]:
                if numbers[IDLE] == 0:
                    return at, n_stored, n_evicted
                evicted[n_evicted] = evict_oldest(blocks, numbers)
                n_evicted += 1
            stored[n_stored] = at
            n_stored += 1
            numbers[CACHED] += 1
            references[block] = 1
        elif references[block] == 0:
            _unlink(blocks, block)
            numbers[IDLE] -= 1
            references[block] = 1
        else:
            references[block] += 1
    return end, n_stored, n_evicted


@compiled("void(int32[:, ::1], int64[::1], int32[::1], int64)")
def release_blocks(blocks, numbers, chain, end):
    """Release the first `end` blocks; the last one will be evicted first."""
    references, older, newer = blocks[REFERENCES], blocks[OLDER], blocks[NEWER]
    head = blocks.shape[1] - 1
    # Backwards, so that the last block of the chain becomes the oldest idle block.
    for at in range(end - 1, -1, -1):
        block = chain[at]
        references[block] -= 1
        if references[block] == 0:
            last = older[head]
            newer[last], older[block] = block, last
            newer[block], older[head] = head, block
            numbers[IDLE] += 1
