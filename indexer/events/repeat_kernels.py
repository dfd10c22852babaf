"""Are all names of an event different?  Two equal ones are in the same part, however many parts
there are, so that many names are first spread over parts and then looked at part by part."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import carray, compiled
from indexer.memory_kernels import give_back, pointer, take_zeroed

U = np.uint64

NAMES_AT_ONCE = 1 << 16
"""So many are compared in one step; their hash set, 1 MiB, stays in the cache."""
PROBES_MAX = 128
SPREAD = U(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: spreads any key over the high bits


@compiled()
def _repeats(names, places, bits):
    """places: uint64 [1 << bits], a hash set; 0 marks a free place"""
    mask, zeros = U((1 << bits) - 1), 0
    for name in names:
        if name == 0:
            zeros += 1
            continue
        place = (name * SPREAD) >> U(64 - bits)
        probes = 0
        while places[place] != 0:
            if places[place] == name or probes == PROBES_MAX:
                return True
            place = (place + U(1)) & mask
            probes += 1
        places[place] = name
    return zeros > 1


@compiled("boolean(uint64[::1])")
def may_repeat(names):
    """False: all of the names are different.  Linear in their number.

    True: two are equal, or somebody chose them to collide here, which would cost quadratic time.
    """
    bits = 4
    while (1 << bits) < 2 * names.shape[0]:
        bits += 1
    address = take_zeroed(8 << bits)
    if address == 0:
        raise MemoryError
    said = _repeats(names, carray(pointer(address), 1 << bits, U), bits)
    give_back(address)
    return said


@compiled("boolean(uint64[::1], int64[::1], uint64[:, ::1])")
def spread(names, used, parts):
    """Append each name to the part that it belongs to.  False: there is no room in one of them.

    used:  int64[n], how many names each part has
    parts: uint64[n, room]; n is a power of two
    """
    mask = U(parts.shape[0] - 1)
    for name in names:
        # Other bits than those that say the place in a hash set.
        part = ((name ^ (name >> U(32))) * SPREAD >> U(20)) & mask
        if used[part] == parts.shape[1]:
            return False
        parts[part, used[part]] = name
        used[part] += 1
    return True
