"""Memory layout of a pending selection: one run of bytes, which compiled code may write.

It has the words below, the key, its sequence hashes, its block hashes, and to the end of the record
the terms: request fields other than the prompt, as JSON.

The key has the words MODEL_BYTES and NAMES_BYTES, then model, tenant and selection id in UTF-8, and
zeros up to a whole word.  It is the same for equal scopes and ids only.
"""

(
    KEY_BYTES,  # length of the key, a multiple of 8
    N_SEQUENCE,
    N_BLOCKS,
    ISL_TOKENS,
    BLOCK_SIZE,
    WORKER_ID,  # unsigned
    DP_RANK,
    EFFECTIVE_TOKENS,  # numbers of the placement, as S_EFFECTIVE, S_WORK, S_EXTERNAL of plan_layout
    OWN_WORK,
    CACHED_BLOCKS,
    OUTPUT_TOKENS,  # expected tokens of output; NO_VALUE for none
    SELECTED_AT,  # seconds, on the clock of the core, float64 bits
) = range(12)
RECORD_WORDS = 12
KEY_AT = 8 * RECORD_WORDS
"""Position of the key in bytes; MODEL_BYTES and NAMES_BYTES are its first two words."""
KEY_WORDS = 2
NO_VALUE = -1
