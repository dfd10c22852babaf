"""Loops over the blocks of a pool, compiled.

A block is a small integer, which stands for its content and all before it.

    references  int32[n + 1]   -1: not cached; 0: cached and idle; above: so many refer to it
    older       int32[n + 1]   list of the idle ones in the order in which they became idle: the one
    newer       int32[n + 1]   before and the one behind; entry n is the head of the ring
    numbers     int64[4]       CACHED blocks, of which IDLE; TAILS, places without content; PLACES
"""

# The decorator erases the signature, so that checking types here would prove nothing.
# mypy: ignore-errors

from indexer.compiled import compiled

CACHED, IDLE, TAILS, PLACES = range(4)


@compiled("int64(int32[::1], int32[::1])")
def leading_hits(references, chain):
    """Leading blocks of the chain that are cached."""
    for at in range(chain.shape[0]):
        if references[chain[at]] < 0:
            return at
    return chain.shape[0]


@compiled("int64(int32[::1], int32[::1])")
def idle_among(references, chain):
    """Blocks of the chain that are cached and that nobody refers to."""
    found = 0
    for at in range(chain.shape[0]):
        if references[chain[at]] == 0:
            found += 1
    return found


@compiled()
def _unlink(older, newer, block):
    newer[older[block]] = newer[block]
    older[newer[block]] = older[block]


@compiled("int64(int32[::1], int32[::1], int32[::1], int64[::1])")
def evict(references, older, newer, numbers):
    """The block that has been idle for the longest is no more cached; returns it."""
    block = newer[references.shape[0] - 1]
    _unlink(older, newer, block)
    references[block] = -1
    numbers[CACHED] -= 1
    numbers[IDLE] -= 1
    return block


@compiled(
    "UniTuple(int64, 3)(int32[::1], int32[::1], int32[::1], int64[::1], int32[::1], int64, int64, "
    "int32[::1], int32[::1])"
)
def take(references, older, newer, numbers, chain, first, end, stored, evicted):
    """Refer to the blocks of the chain from `first` to `end`, as far as there are places.

    stored:  int32[], gets the positions in the chain of the blocks that were not cached
    evicted: int32[], gets the blocks that went for them
    Returns (end of what is taken, how many stored, how many evicted).
    """
    n_stored, n_evicted = 0, 0
    for at in range(first, end):
        block = chain[at]
        if references[block] < 0:
            if numbers[CACHED] + numbers[TAILS] >= numbers[PLACES]:
                if numbers[IDLE] == 0:
                    return at, n_stored, n_evicted
                evicted[n_evicted] = evict(references, older, newer, numbers)
                n_evicted += 1
            stored[n_stored] = at
            n_stored += 1
            numbers[CACHED] += 1
            references[block] = 1
        elif references[block] == 0:
            _unlink(older, newer, block)
            numbers[IDLE] -= 1
            references[block] = 1
        else:
            references[block] += 1
    return end, n_stored, n_evicted


@compiled("void(int32[::1], int32[::1], int32[::1], int64[::1], int32[::1], int64)")
def release(references, older, newer, numbers, chain, end):
    """Refer no more to the first `end` blocks; the last one will be the first to go."""
    head = references.shape[0] - 1
    for at in range(end - 1, -1, -1):
        block = chain[at]
        references[block] -= 1
        if references[block] == 0:
            last = older[head]
            newer[last], older[block] = block, last
            newer[block], older[head] = head, block
            numbers[IDLE] += 1
