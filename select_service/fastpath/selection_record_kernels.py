"""Records of the fast path's selections, which a later booking may take over by their id."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.index.header_kernels import i64_view, u8_view, u64_view
from indexer.jit.decorators import compiled
from select_service.core.placement import pending_selection_layout as record
from select_service.core.placement.plan_layout import (
    BLOCK_SIZE,
    S_EFFECTIVE,
    S_EXTERNAL,
    S_WORK,
    SUMMARY,
)
from select_service.fastpath.parsing.byte_kernels import NONE, I, U
from select_service.fastpath.parsing.request_layout import (
    EXPECTED_OUTPUT_TOKENS,
    ISL_TOKENS,
    N_BLOCKS,
    N_SEQUENCE,
    RESERVATION_ID,
    ROUTE,
    SELECT,
    SELECTION_ID,
)
from select_service.fastpath.response_kernels import record_of
from select_service.fastpath.serve_layout import (
    BEGAN_NS,
    BLOCKS,
    DP_RANK,
    KEEPS_SELECTIONS,
    MODEL_BYTES,
    NAMES,
    PLAN,
    SELECTION,
    SELECTION_BYTES,
    SELECTION_TEXT,
    SEQUENCE,
    SLOT,
    WORKER_ID,
)


@compiled()
def _put_key(data, state, row, field):
    """Write the key of the id in a field of the request; returns its length in bytes."""
    words, bytes_, names = (
        i64_view(state, SELECTION),
        u8_view(state, SELECTION_TEXT),
        u8_view(row, NAMES),
    )
    begin, length, n_names = state[field], state[field + 1], names.shape[0]
    n_texts = n_names + length
    n_words = record.KEY_WORDS + (n_texts + 7) // 8
    # The last word is zeroed first: the texts need not fill it.
    words[record.RECORD_WORDS + n_words - 1] = 0
    words[record.RECORD_WORDS] = row[MODEL_BYTES]
    words[record.RECORD_WORDS + 1] = n_names
    # Unsigned indices spare the check of the sign in each access.
    at = U(record.KEY_AT + 8 * record.KEY_WORDS)
    for k in range(U(n_names)):
        bytes_[at + k] = names[k]
    at += U(n_names)
    for k in range(U(length)):
        bytes_[at + k] = data[U(begin) + k]
    words[record.KEY_BYTES] = 8 * n_words
    return 8 * n_words


@compiled()
def _put_hashes(words, at, hashes, n):
    for k in range(U(n)):
        words[U(at) + k] = I(hashes[k])


@compiled()
def _put_record(data, state, row):
    """Write the record of the selection on SLOT; returns its length in bytes."""
    words, plan = i64_view(state, SELECTION), i64_view(row, PLAN)
    rank, summary = record_of(row, state[SLOT]), i64_view(plan, SUMMARY)
    n_sequence, n_blocks = state[N_SEQUENCE], state[N_BLOCKS]
    words[record.N_SEQUENCE], words[record.N_BLOCKS] = n_sequence, n_blocks
    words[record.ISL_TOKENS], words[record.BLOCK_SIZE] = state[ISL_TOKENS], plan[BLOCK_SIZE]
    words[record.WORKER_ID], words[record.DP_RANK] = rank[WORKER_ID], rank[DP_RANK]
    words[record.EFFECTIVE_TOKENS] = summary[S_EFFECTIVE]
    words[record.OWN_WORK], words[record.CACHED_BLOCKS] = summary[S_WORK], summary[S_EXTERNAL]
    words[record.OUTPUT_TOKENS] = state[EXPECTED_OUTPUT_TOKENS]
    words[record.SELECTED_AT] = np.float64(float(state[BEGAN_NS]) / 1e9).view(np.int64)
    at = record.RECORD_WORDS + _put_key(data, state, row, SELECTION_ID) // 8
    _put_hashes(words, at, u64_view(state, SEQUENCE), n_sequence)
    _put_hashes(words, at + n_sequence, u64_view(state, BLOCKS), n_blocks)
    return 8 * (at + n_sequence + n_blocks)


@compiled()
def write_selection(data, state, row):
    """Write what the pending selections need of the request just answered into SELECTION.

    SELECTION_BYTES becomes the length of the record of a selection with an id; the negative length
    of the key, without a record, of a booking on a rank chosen by the client; else it stays 0.
    """
    if state[KEEPS_SELECTIONS] == 0:
        return
    if state[ROUTE] == SELECT:
        if state[SELECTION_ID] != NONE:
            state[SELECTION_BYTES] = _put_record(data, state, row)
    elif state[RESERVATION_ID] != NONE:
        state[SELECTION_BYTES] = -I(_put_key(data, state, row, RESERVATION_ID))
