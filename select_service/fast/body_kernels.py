"""The JSON body of a usual request: lists to arrays, numbers and places of texts to the fields.

Usual is an object of known keys, each once and with a value of its type: lists of integers,
integers, and texts of plain ASCII without escapes.  What the ordinary path would answer in another
way than by choosing or booking is not usual, nor is what it would warn of.

Source: RFC 8259; the fields are those of `bodies`.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled
from select_service.fast.byte_kernels import (
    EXACT,
    NONE,
    QUOTE,
    WINDOW,
    U,
    byte_at,
    bytes_of,
    digits,
    number_in,
    plain_text,
    run_end,
    skip_blanks,
    text_number,
    words_of,
)
from select_service.fast.list_kernels import read_hashes, read_tokens
from select_service.fast.request_layout import (
    DP_RANK,
    EFFECTIVE_PREFILL_TOKENS,
    EXPECTED_OUTPUT_TOKENS,
    ISL_TOKENS,
    LENGTH_MAX,
    MODEL_NAME,
    N_BLOCKS,
    N_SEQUENCE,
    N_TOKENS,
    RESERVATION_ID,
    RESERVE,
    ROUTE,
    SELECTION_ID,
    TENANT_ID,
    TEXT_BYTES_MAX,
    UNUSUAL,
    USUAL,
    WORKER_ID,
)

COLON, COMMA, OPEN_LIST, OPEN, CLOSE = bytes_of(b":,[{}")

U32_MAX, U64_MAX = 2**32 - 1, 2**64 - 1
SELECTS, BOOKS, RESERVES = 0b011, 0b110, 0b100
"""Routes by bit: those that choose, those that book, the one with a rank of the caller's."""

KEYS = (
    (b"block_hashes", N_BLOCKS, 0b111, 0),
    (b"sequence_hashes", N_SEQUENCE, 0b111, 0),
    (b"token_ids", N_TOKENS, 0b111, 0),
    (b"isl_tokens", ISL_TOKENS, 0b111, LENGTH_MAX),
    (b"worker_id", WORKER_ID, RESERVES, U64_MAX - 1),
    (b"dp_rank", DP_RANK, RESERVES, U32_MAX),
    (b"effective_prefill_tokens", EFFECTIVE_PREFILL_TOKENS, RESERVES, LENGTH_MAX),
    (b"expected_output_tokens", EXPECTED_OUTPUT_TOKENS, 0b111, U32_MAX),
    (b"model_name", MODEL_NAME, 0b111, 0),
    (b"tenant_id", TENANT_ID, 0b111, 0),
    (b"routing_group", TENANT_ID, 0b111, 0),
    (b"selection_id", SELECTION_ID, SELECTS, 0),
    (b"reservation_id", RESERVATION_ID, BOOKS, 0),
)
"""Key, its entry in the fields, the routes that take it, the highest number.

U64_MAX itself is NONE, as its 64 bits.
"""
KEY_WORDS = words_of(*(key for key, _, _, _ in KEYS))
ENTRY = np.array([entry for _, entry, _, _ in KEYS])
TAKEN_BY = np.array([routes for _, _, routes, _ in KEYS])
HIGHEST = np.array([highest for _, _, _, highest in KEYS], np.uint64)


@compiled(_nrt=False)
def read_number(data, at, end, highest):
    """(an unsigned integer that is no more than `highest`, place behind it or UNUSUAL)."""
    behind = run_end(data, at, end, digits)
    if behind in (at, end):
        return U(0), UNUSUAL
    value, wrong = number_in(data, at, behind)
    return value, (behind if wrong == 0 and value <= highest else UNUSUAL)


@compiled(_nrt=False)
def read_text(data, at, end):
    """Place behind the quote that ends the text whose first byte is at `at`, or UNUSUAL."""
    behind = run_end(data, at, end, plain_text)
    usual = byte_at(data, behind, end) == QUOTE and 0 < behind - at <= TEXT_BYTES_MAX
    return behind + 1 if usual else UNUSUAL


@compiled(_nrt=False, forceinline=True)
def read_numbers(data, at, end, entry, blocks, sequence, tokens):
    """(how many numbers the list has that begins at `at`, place behind it)."""
    if byte_at(data, at, end) != OPEN_LIST:
        return NONE, UNUSUAL
    if entry == N_TOKENS:
        return read_tokens(data, at + 1, end, tokens)
    return read_hashes(data, at + 1, end, blocks if entry == N_BLOCKS else sequence)


@compiled(_nrt=False, forceinline=True)
def read_value(data, at, end, key, fields, blocks, sequence, tokens):
    """Read the value of a key; the place behind it or UNUSUAL."""
    entry = ENTRY[key]
    if entry >= SELECTION_ID:
        if byte_at(data, at, end) != QUOTE:
            return UNUSUAL
        behind = read_text(data, at + 1, end)
        fields[entry], fields[entry + 1] = at + 1, behind - at - 2
        return behind
    if entry >= N_BLOCKS:
        fields[entry], behind = read_numbers(data, at, end, entry, blocks, sequence, tokens)
        return behind if fields[entry] != NONE else UNUSUAL
    fields[entry], behind = read_number(data, at, end, HIGHEST[key])
    return behind


@compiled(_nrt=False, forceinline=True)
def read_member(data, at, end, fields, blocks, sequence, tokens):
    """Read a key and its value; the place behind them or UNUSUAL."""
    if byte_at(data, at, end) != QUOTE:
        return UNUSUAL
    behind = read_text(data, at + 1, end)
    if behind < 0:
        return UNUSUAL
    key = text_number(data, at + 1, behind - 1, KEY_WORDS, EXACT)
    if key == NONE or (TAKEN_BY[key] >> fields[ROUTE]) & 1 == 0 or fields[ENTRY[key]] != NONE:
        return UNUSUAL
    at = skip_blanks(data, behind, end)
    if byte_at(data, at, end) != COLON:
        return UNUSUAL
    at = skip_blanks(data, at + 1, end)
    return read_value(data, at, end, key, fields, blocks, sequence, tokens)


@compiled(_nrt=False, forceinline=True)
def read_object(data, at, end, fields, blocks, sequence, tokens):
    """Place behind the object that begins at `at`, or UNUSUAL."""
    if byte_at(data, at, end) != OPEN:
        return UNUSUAL
    at = skip_blanks(data, at + 1, end)
    if byte_at(data, at, end) == CLOSE:
        return at + 1
    while at >= 0:
        at = read_member(data, at, end, fields, blocks, sequence, tokens)
        if at >= 0:
            at = skip_blanks(data, at, end)
            mark = byte_at(data, at, end)
            if mark == CLOSE:
                return at + 1
            at = skip_blanks(data, at + 1, end) if mark == COMMA else UNUSUAL
    return UNUSUAL


@compiled(_nrt=False)
def is_whole(fields):
    """Does a prompt stand in the fields, in one form, and what else the route needs?"""
    if fields[ROUTE] > RESERVE:
        return True
    if fields[ROUTE] == RESERVE and (fields[RESERVATION_ID] == NONE or fields[WORKER_ID] == NONE):
        return False
    if fields[N_TOKENS] != NONE:
        fields_of_hashes = fields[N_BLOCKS] & fields[N_SEQUENCE] & fields[ISL_TOKENS]
        fields[ISL_TOKENS] = fields[N_TOKENS]
        return fields_of_hashes == NONE
    if fields[N_SEQUENCE] == NONE or fields[ISL_TOKENS] < 1:
        return False
    if fields[N_BLOCKS] == NONE:
        return fields[ROUTE] == RESERVE
    return fields[N_BLOCKS] == fields[N_SEQUENCE]


@compiled(_nrt=False)
def read_body(data, at, end, fields, blocks, sequence, tokens):
    """Read the body [at, end) of the request whose head has been read: USUAL or UNUSUAL.

    blocks, sequence: uint64; tokens: uint32: out; each SPARE longer than its lists may be
    """
    if at == end:
        return USUAL if fields[ROUTE] > RESERVE else UNUSUAL
    if at < WINDOW:
        return UNUSUAL
    behind = read_object(data, skip_blanks(data, at, end), end, fields, blocks, sequence, tokens)
    if behind < 0 or skip_blanks(data, behind, end) != end:
        return UNUSUAL
    return USUAL if is_whole(fields) else UNUSUAL
