"""Layout of what `payload_kernels` reads: columns of an event, a batch in progress, and words."""

import numpy as np

# Columns of a row: one event.  Ranges are half-open; a text is a first byte and a length.
TAG = 0
HASH_START = 1
HASH_END = 2
TOKEN_START = 3
TOKEN_END = 4
IS_BIGRAM = 5
HAS_PARENT = 6
PARENT = 7  # 64 bits of the hash
BLOCK_SIZE = 8
GROUP_IDX = 9
MEDIUM_START = 10
MEDIUM_LEN = 11
LORA_START = 12
LORA_LEN = 13
SPEC_START = 14
SPEC_LEN = 15
WINDOW = 16
LORA_ID = 17  # NONE for the base model
HAS_KEY_FIELDS = 18
IS_ARRAY = 19
N_COLUMNS = 20

# Fields of a batch in progress.
(
    AT,  # begin of the next, or unfinished, event; 0 before the first call
    N_ELEMENTS,  # elements of the batch
    EVENTS_LEFT,
    USED,  # rows used
    BUDGET,  # hashes, tokens and events left for this call
    HASHES,  # hashes already read of the unfinished event
    HASHES_AT,  # begin of the next hash
    TOKENS,
    TOKENS_AT,
) = range(9)
JOB_LENGTH = 9
NO_BUDGET = 2**62  # a budget that is never spent
STOPPED = -2  # negative index, as UNUSUAL: the budget is spent before the end

# All texts with a meaning: the tags, then `type` and the positional fields of a stored event in
# order, then the other fields, then the only locality that counts as local.
WORDS = (
    b"BlockStored",
    b"BlockRemoved",
    b"AllBlocksCleared",
    b"Ignored",
    b"type",
    b"block_hashes",
    b"parent_block_hash",
    b"token_ids",
    b"block_size",
    b"lora_id",
    b"medium",
    b"lora_name",
    b"extra_keys",
    b"group_idx",
    b"kv_cache_spec_kind",
    b"locality",
    b"kv_cache_spec_sliding_window",
    b"ownership",
    b"session_id",
    b"source_kind",
    b"lookahead_token_ids",
    b"LOCAL",
)
N_WORDS = len(WORDS)
STORED, REMOVED, CLEARED, IGNORED, TYPE = range(5)
W_BLOCK_HASHES = WORDS.index(b"block_hashes")
W_PARENT = WORDS.index(b"parent_block_hash")
W_TOKEN_IDS = WORDS.index(b"token_ids")
W_BLOCK_SIZE = WORDS.index(b"block_size")
W_MEDIUM = WORDS.index(b"medium")
W_LORA_NAME = WORDS.index(b"lora_name")
W_EXTRA_KEYS = WORDS.index(b"extra_keys")
W_GROUP_IDX = WORDS.index(b"group_idx")
W_SPEC_KIND = WORDS.index(b"kv_cache_spec_kind")
W_WINDOW = WORDS.index(b"kv_cache_spec_sliding_window")
W_LORA_ID = WORDS.index(b"lora_id")
W_LOOKAHEAD = WORDS.index(b"lookahead_token_ids")
W_LOCALITY = WORDS.index(b"locality")
W_LOCAL = WORDS.index(b"LOCAL")
WORD_BYTES = np.frombuffer(b"".join(WORDS), np.uint8).copy()
WORD_STARTS = np.cumsum([0, *map(len, WORDS)])
