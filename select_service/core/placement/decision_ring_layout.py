"""Memory layout of the rings in which compiled code records the decisions of a thread.

A ring has a header, an int64 array living as long as the `DecisionRing`.  The header has plain
numbers and pairs (address, length) of arrays; the views of indexer.index.header_kernels turn a pair
into an array again.

pair     type    length           meaning
WORDS    int64   n_words          rows of decisions, one behind the other
BYTES    uint8   8 * n_words      the same memory
BEGINS   int64   decisions_max    first position of a decision's row, by decision number
MINIMA   float64 LANES            scratch: lowest cost of every LANES-th candidate

A position counts all words since the start; WORDS[position % n_words] is the word there.  Rows are
never split: a row that might cross the end of WORDS begins at the next multiple of n_words.  A
placement writes a row behind NEXT_POSITION.  Keeping the decision moves NEXT_POSITION behind the
row, and only then
the row counts.  Rows starting less than n_words - ROW_WORDS_MAX before NEXT_POSITION are whole.

A row has ROW_WORDS words, CANDIDATE_WORDS words per candidate and, with HAS_FACTORS, one cost
factor per candidate.  The chosen rank is the first candidate.  With more than CANDIDATES_MAX
candidates the row has only some; see `decision_ring_kernels`.
"""

WORDS, BYTES, BEGINS, MINIMA = range(0, 8, 2)
NEXT_POSITION = 8
"""Position of the next row."""
N_DECISIONS = 9
"""Number of decisions kept since the start, which is also the number of the newest, from 1."""
DRAFT_WORDS = 10
"""Length of the last written row behind NEXT_POSITION, in words.

0 means the row is kept already.
"""
CREDIT_FADES = 11
"""1 when costs may depend on the least prefill tokens of all candidates; rows then record this
number.
"""
RING_LENGTH = 12

LANES = 64
CANDIDATES_MAX = 64
CANDIDATES_MIN, CANDIDATES_ENOUGH = 16, 32
"""Minimum and usual maximum of the candidates in a row when there are more than CANDIDATES_MAX."""
PARAMETERS_MAX = 16
"""Maximum number of parameters of a policy."""
ID_WORDS = 6
ID_BYTES = 8 * ID_WORDS
ID_BYTES_KEPT = ID_BYTES - 8
"""Bytes kept of a longer id; the last word is then a hash of the whole id."""

# Words of a row.  A text takes 1 + ID_WORDS words: the length in bytes (NO_VALUE without a text),
# then
# the bytes.
NO_VALUE = -1
(
    NUMBER,  # decision number, from 1
    PARTITION,  # partition number in the ring
    POLICY,  # policy number in the ring
    FLAGS,
    ISL_TOKENS,
    N_BLOCKS,
    PROMPT_HASH,  # sequence hash of the last complete block
    DRAW,  # float64 bits, like DECIDED_AT and WAITED_S
    N_ELIGIBLE,
    N_ROWS,  # number of candidates in the row
    LEAST_PREFILL,  # tokens, over all candidates; 0 if no cost depends on this
    DECIDED_AT,  # seconds, on the clock of the core
    WAITED_S,
    POLICY_CLASS,  # class number of the queue; NO_VALUE for a request that did not wait
    QUEUE_POSITION,  # position in this queue
    REPORTED_SHARE,  # value of the load, float64 bits
    USUAL_SPEED,  # value of the rank table, float64 bits
    LEAST_WORK,  # own work in tokens, over all candidates; 0 if no cost depends on this
    N_PARAMETERS,
) = range(19)
PARAMETERS = 19
"""First of PARAMETERS_MAX words with the plan's parameters, float64 bits."""
SELECTION_ID = PARAMETERS + PARAMETERS_MAX
RESERVATION_ID = SELECTION_ID + 1 + ID_WORDS
ROW_WORDS = RESERVATION_ID + 1 + ID_WORDS

IS_RESERVED, IS_PINNED, HAS_FACTORS = 1, 2, 4
"""Bits of FLAGS: load was booked, the request named the rank, the request preferred some taints."""

# Words of a candidate.
(
    SLOT_AND_VERSION,  # slot, and from bit SLOT_BITS on the row version in the rank table
    PREFILL_TOKENS,
    ACTIVE_BLOCKS,
    # Leading run in blocks; from bit 14 device blocks that are only assumed; from bit 32 live
    # requests; bit 62: outside the share.
    LEADING_AND_REQUESTS,
    MATCHED_LOW,  # GPU blocks, and from bit 32 on blocks including CPU
    MATCHED_HIGH,  # blocks including disk, and from bit 32 on including external storage
    WORK_BOOKED,  # own work of unfinished prefills in tokens; WORK_LEFT is the remainder
    WORK_LEFT,
    KV_BLOCKS,  # float64 bits, like all words up to COST
    WEIGHT,
    SPEED,  # declared prefill speed, tokens per second; 0 means undeclared
    COST,
    # Reusable tokens behind the last whole block, less those that are computed again; from bit 32
    # credit for tokens in a shared cache.
    INSIDE_TOKENS,
    HELD_BLOCKS,  # device blocks by events, or by assumption
) = range(14)
CANDIDATE_WORDS = 14
SLOT_BITS = 24
ASSUMED_BIT, ASSUMED_MAX = 14, 2**18 - 1
HIGH_HALF_BIT = 32
OUTSIDE_BIT = 62

ROW_WORDS_MAX = ROW_WORDS + CANDIDATES_MAX * (CANDIDATE_WORDS + 1)
