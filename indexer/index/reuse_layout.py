"""Layout of the table with the caches that a rank has besides the dense cache, for kernels.

A model with different kinds of layers has several cache *groups* per rank.  The first dense group
(full attention) is the rank's GPU tier in the tree; every other group is a lane of the same slot.
Ranks with equal groups share a *layout*: a row of the table, int64 [n, LAYOUT_LENGTH].

All lengths are in positions: blocks of the tree, or units of a block where hits may end inside
blocks (R_UNITS > 1).
"""

from indexer.index.header_kernels import LANES_MAX

# Kinds of a lane: which blocks must be held for a prefix that ends at position b to be reusable.
(
    DENSE,  # all blocks up to b
    WINDOW,  # the last NEED blocks before b
    STATE,  # the block that ends at b
    CHUNKED,  # all blocks of b's chunk before b
    UNKNOWN,  # kind not sent: taken as held, so the result is an upper bound
) = range(5)

# Values of R_BOUND.
NEVER, ALWAYS, BLIND, UNSURE = range(4)

# Certainty of a reusable prefix, in BOUNDED.
EXACT, AT_MOST, AT_LEAST, UNCERTAIN = range(4)

# Fields of a layout.
(
    R_ALIGN,  # reusable prefixes end at multiples of this number
    R_UNITS,  # positions per block of the tree
    R_DROP,  # positions that the dense group must hold behind the end
    R_HAS_DENSE,  # 0: no group is dense, so that only lanes decide
    R_IS_SINGLE,  # 1: the dense group is the only group
    R_REPLAY,  # a reusable prefix of not more tokens counts as none
    # ALWAYS an upper bound, whatever the prompt; BLIND: of the dense match alone; UNSURE: perhaps
    # too high, perhaps too low
    R_BOUND,
    R_ENDS_TIER,  # lane of the dense group's ends inside blocks
    R_IS_BY_NAME,  # 1: lanes are placed by the engine's names (UNIT_NAMES), not in the tree
    R_HAS_PARTS,  # 1: a lane's blocks are finer than the tree's, so that tokens are needed
    R_AHEAD,  # tokens behind a block that the block's content covers, if more than one
    R_N_LANES,
) = range(12)
LAYOUT_FIELDS = 12

# Fields of a lane, behind the fields of the layout.
(
    G_TIER,  # the lane's number as a tier
    G_KIND,
    G_SIZE,  # positions per block; 1 where blocks are parts of a position (G_PARTS)
    G_NEED,  # of a window: blocks (parts, if any) that must be held; of chunks: positions
    G_DROP,  # positions that must be held behind the end
    G_PARTS,  # blocks per position, of a window with finer blocks than the tree; else 0
    G_AHEAD,  # tokens behind such a block that belong to the block's content
) = range(7)
LANE_FIELDS = 7
LAYOUT_LENGTH = LAYOUT_FIELDS + LANES_MAX * LANE_FIELDS
