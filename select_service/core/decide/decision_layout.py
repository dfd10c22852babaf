"""The rings in which compiled code keeps the decisions of one thread.  Nothing else.

A ring has a header, an int64 array that lives as long as its `DecisionRing`: pairs (address,
length) of arrays, which the views of indexer.index.state_kernels turn into arrays again, and plain
numbers.

pair     type    length           meaning
WORDS    int64   n_words          rows of decisions, one behind the other
BYTES    uint8   8 * n_words      the same memory
BEGINS   int64   decisions_max    where the row of a decision begins, by its number
MINIMA   float64 LANES            scratch: lowest cost of every LANES-th candidate

Places count all words since the start; what lies at a place is WORDS[place % n_words].  A row is
never split: where it might not fit before the end of WORDS it begins at the next multiple.  It is
written behind HEAD when a prompt is placed, and counts from when the decision is kept, which moves
HEAD behind it.  What lies less than n_words - ROW_WORDS_MAX before HEAD is whole.

A row is its ROW_WORDS, then CANDIDATE_WORDS for each candidate, then, with FACTORED, the factor of
each cost.  The chosen rank is the first candidate.  Of more than CANDIDATES_MAX candidates only
some are in the row; see `decision_kernels`.
"""

WORDS, BYTES, BEGINS, MINIMA = range(0, 8, 2)
HEAD = 8
"""Place of the next row."""
KEPT = 9
"""Decisions kept since the start; also the number of the newest, from 1."""
DRAFT_WORDS = 10
"""Length of the row that was written last, behind HEAD; 0: it is kept already."""
CREDIT_FADES = 11
"""1: costs may depend on the least prefill tokens of all candidates, so rows say them."""
RING_LENGTH = 12

LANES = 64
CANDIDATES_MAX = 64
CANDIDATES_MIN, CANDIDATES_ENOUGH = 16, 32
"""Of more candidates than the most at least so many are in a row, and usually no more than this."""
PARAMETERS_MAX = 16
"""Of a policy."""
ID_WORDS = 6
ID_BYTES = 8 * ID_WORDS
ID_BYTES_KEPT = ID_BYTES - 8
"""Of a longer id; its last word is a hash of all of it."""

# Words of a row.  A text is its length in bytes, NONE where there is none, and ID_WORDS words.
NONE = -1
(
    NUMBER,  # of the decision, from 1
    PARTITION,  # number of the partition in the ring
    POLICY,  # number of the policy in the ring
    FLAGS,
    ISL_TOKENS,
    N_BLOCKS,
    PROMPT,  # sequence hash of the last complete block
    DRAW,  # bits of a float64, as DECIDED_AT and WAITED_S
    N_ELIGIBLE,
    N_ROWS,  # candidates in the row
    LEAST_PREFILL,  # tokens, over all candidates; 0 where nothing depends on it
    DECIDED_AT,  # in seconds, as `now` of the core
    WAITED_S,
    POLICY_CLASS,  # number of the class in whose queue it waited; NONE: it did not
    POSITION,  # in that queue
    REPORTED,  # of the load, bits of a float64
    USUAL_SPEED,  # of the rank table, bits of a float64
    N_PARAMETERS,
) = range(18)
PARAMETERS = 18
"""Bits of the float64 of the plan, PARAMETERS_MAX of them."""
SELECTION_ID = PARAMETERS + PARAMETERS_MAX
RESERVATION_ID = SELECTION_ID + 1 + ID_WORDS
ROW_WORDS = RESERVATION_ID + 1 + ID_WORDS

RESERVED, PINNED, FACTORED = 1, 2, 4
"""Bits of FLAGS: load was booked, the request named the rank, it preferred some taints."""

# Words of a candidate.
(
    WHO,  # slot, and from SLOT_BITS on the version of its row in the rank table
    PREFILL_TOKENS,
    ACTIVE_BLOCKS,
    LIVE,  # leading run in blocks, from bit 32 on live requests, bit 62: outside the share
    MATCHED_LOW,  # blocks on GPU, and from bit 32 on with those on CPU
    MATCHED_HIGH,  # with those on disk, and from bit 32 on in external storage
    BOOKED,  # own work of its unfinished prefills in tokens, and what is left of it
    LEFT,
    KV_BLOCKS,  # bits of a float64, as all that follow
    WEIGHT,
    SPEED,  # declared, in tokens per second; 0: it is not
    COST,
) = range(12)
CANDIDATE_WORDS = 12
SLOT_BITS = 24
HALF = 32
OUTSIDE_BIT = 62

ROW_WORDS_MAX = ROW_WORDS + CANDIDATES_MAX * (CANDIDATE_WORDS + 1)
