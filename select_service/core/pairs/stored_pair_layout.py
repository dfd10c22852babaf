"""Layout of the record that the fast path keeps of a pair's request.

A record has RECORD_WORDS numbers of the request, int64, then the block hashes and the sequence
hashes of the prompt.
"""

(
    N_BLOCKS,  # block hashes; the sequence hashes are the rest
    ISL_TOKENS,
    LOCAL,  # index in LOCAL_RULES of stored_pair
    OUTPUT_TOKENS,  # -1: not given
    HAS_RESERVATION_ID,  # whether the id of the booking was given as `reservation_id`
) = range(5)
RECORD_WORDS = 5
