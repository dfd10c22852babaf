"""Small indexes, and the matches of each slot for a path."""

import numpy as np

from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import Tier

CONTENTS = [1, 2, 3, 4]
NAMES = [11, 12, 13, 14]


def u64(*values):
    return np.array(values, np.uint64)


def an_index(slots=1, **limits):
    index = PrefixIndex(limits.pop("blocks_max", 1000), **limits)
    return index, *(index.open_slot() for _ in range(slots))


def matched(index, *path):
    """Return a row per slot with cumulated tiers, after a check of the invariants."""
    index.check_invariants()
    return index.match(u64(*path)).tolist()


def gpu(index, *path):
    return [row[Tier.GPU] for row in matched(index, *path)]
