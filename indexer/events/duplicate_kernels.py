"""Check for repeated hashes in an event.

Two equal hashes fall into the same part, for any number of parts, so many hashes are first spread
over parts and then compared part by part.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.jit.decorators import carray, compiled
from indexer.jit.memory_kernels import as_pointer, calloc, free

U = np.uint64

NAMES_AT_ONCE = 1 << 16
"""Limit of hashes compared per step; their hash set, 1 MiB, stays in the cache."""
PROBES_MAX = 128
SPREAD = U(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: spreads any key over the high bits


@compiled()
def _has_duplicates(names, places, bits):
    """Return whether a name occurs twice; places: uint64 [1 << bits], a hash set, 0 marks a free
    place
    """
    mask, zeros = U((1 << bits) - 1), 0
    for name in names:
        if name == 0:
            zeros += 1
            continue
        place = (name * SPREAD) >> U(64 - bits)
        probes = 0
        while places[place] != 0:
            # Random hashes never need so many probes; hashes chosen to collide do.
            if places[place] == name or probes == PROBES_MAX:
                return True
            place = (place + U(1)) & mask
            probes += 1
        places[place] = name
    return zeros > 1


@compiled("boolean(uint64[::1])")
def may_have_duplicates(names):
    """Return False if all names are different.  O(names)

    True: two are equal, or were chosen to collide here, which would cost quadratic time.
    """
    bits = 4
    while (1 << bits) < 2 * names.shape[0]:
        bits += 1
    address = calloc(8 << bits)
    if address == 0:
        raise MemoryError
    said = _has_duplicates(names, carray(as_pointer(address), 1 << bits, U), bits)
    free(address)
    return said


@compiled("boolean(uint64[::1], int64[::1], uint64[:, ::1])")
def spread_names(names, used, parts):
    """Append each name to the name's part.  Return False if a part is full.

    used:  int64[n], number of names per part
    parts: uint64[n, room]; n is a power of two
    """
    mask = U(parts.shape[0] - 1)
    for name in names:
        # Other bits than the bits that choose the place in a hash set.
        part = ((name ^ (name >> U(32))) * SPREAD >> U(20)) & mask
        if used[part] == parts.shape[1]:
            return False
        parts[part, used[part]] = name
        used[part] += 1
    return True
