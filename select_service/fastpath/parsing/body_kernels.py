"""Parser of the JSON body of a common request: lists into arrays, numbers and text offsets into
fields.

A common body is an object of known keys, each once with a value of its type: lists of integers,
integers, fractions of a few digits, and texts of plain ASCII without escapes.  Null is accepted
where it means omission, because generated clients often write null.  Requests that the ordinary
path would refuse, or answer with a warning, are not common.

Source: RFC 8259; the fields are those of `bodies`.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.jit.decorators import compiled
from select_service.fastpath.parsing.byte_kernels import (
    CASE_SENSITIVE,
    DOT,
    NONE,
    QUOTE,
    TEN_TO,
    WINDOW,
    ZERO,
    I,
    U,
    byte_at,
    bytes_of,
    digit_mask,
    index_of_text,
    plain_text_mask,
    run_end,
    skip_blanks,
    words_of,
)
from select_service.fastpath.parsing.number_kernels import number_in
from select_service.fastpath.parsing.number_list_kernels import read_hashes, read_tokens
from select_service.fastpath.parsing.request_layout import (
    AUTO,
    COMMON,
    DECAY_FRACTION,
    DP_RANK,
    EFFECTIVE_PREFILL_TOKENS,
    EXPECTED_OUTPUT_TOKENS,
    IS_SELECTION_NAMED,
    ISL_TOKENS,
    KEYS_LEFT,
    LENGTH_MAX,
    LOCAL,
    MODEL_NAME,
    N_BLOCKS,
    N_SEQUENCE,
    N_TOKENS,
    NOT_COMMON,
    OUTPUT_BLOCK,
    PREFILL_COMPLETE,
    RESERVATION_ID,
    RESERVE,
    RETURNS_HASHES,
    ROUTE,
    SELECT,
    SELECT_PAIR,
    SELECT_PAIR_AND_RESERVE,
    SELECTION_ID,
    SESSION_BYTES_MAX,
    SESSION_ID,
    TENANT_ID,
    TEXT_BYTES_MAX,
    TIMEOUT_MS_MAX,
    WORKER_ID,
)

COLON, COMMA, OPEN_LIST, OPEN, CLOSE, SMALL_N, SMALL_T = bytes_of(b":,[{}nt")

U32_MAX, U64_MAX = 2**32 - 1, 2**64 - 1
SELECT_ROUTES, BOOKING_ROUTES, PAIR_ROUTES = 0b11011, 0b10110, 0b11000
RESERVE_ROUTE, OUTPUT_BLOCK_ROUTE = 1 << RESERVE, 1 << OUTPUT_BLOCK
"""Sets of routes, one bit each: routes that choose, routes that book, routes of pairs, the route
with a rank chosen by the caller, and the route that counts an output block.
"""
SELECT_AND_RESERVE_ROUTE = SELECT_ROUTES & BOOKING_ROUTES
PROMPT_ROUTES = (1 << PREFILL_COMPLETE) - 1
NULL_ONLY = NONE
"""Entry of a key that is accepted only with the value null."""
IGNORED_NUMBER, IGNORED_TEXT = NULL_ONLY - 1, NULL_ONLY - 2
"""Entries of keys that matter only to requests that wait, which the ordinary path reads."""

KEYS = (
    (b"block_hashes", N_BLOCKS, PROMPT_ROUTES, 0),
    (b"sequence_hashes", N_SEQUENCE, PROMPT_ROUTES, 0),
    (b"token_ids", N_TOKENS, PROMPT_ROUTES, 0),
    (b"isl_tokens", ISL_TOKENS, PROMPT_ROUTES, LENGTH_MAX),
    (b"worker_id", WORKER_ID, RESERVE_ROUTE, U64_MAX - 1),
    (b"dp_rank", DP_RANK, RESERVE_ROUTE, U32_MAX),
    (b"effective_prefill_tokens", EFFECTIVE_PREFILL_TOKENS, RESERVE_ROUTE, LENGTH_MAX),
    (b"expected_output_tokens", EXPECTED_OUTPUT_TOKENS, PROMPT_ROUTES, U32_MAX),
    (b"model_name", MODEL_NAME, PROMPT_ROUTES, 0),
    (b"tenant_id", TENANT_ID, PROMPT_ROUTES, 0),
    (b"routing_group", TENANT_ID, PROMPT_ROUTES, 0),
    (b"selection_id", SELECTION_ID, PROMPT_ROUTES, 0),
    (b"reservation_id", RESERVATION_ID, BOOKING_ROUTES, 0),
    (b"return_hashes", RETURNS_HASHES, SELECT_AND_RESERVE_ROUTE, 0),
    (b"decay_fraction", DECAY_FRACTION, OUTPUT_BLOCK_ROUTE, 0),
    (b"lora_name", NULL_ONLY, PROMPT_ROUTES, 0),
    (b"cache_salt", NULL_ONLY, PROMPT_ROUTES, 0),
    (b"is_eagle", NULL_ONLY, PROMPT_ROUTES, 0),
    (b"mm_routing_info", NULL_ONLY, PROMPT_ROUTES, 0),
    (b"block_mm_infos", NULL_ONLY, PROMPT_ROUTES, 0),
    (b"router_config_override", NULL_ONLY, PROMPT_ROUTES, 0),
    (b"priority_jump", NULL_ONLY, SELECT_ROUTES, 0),
    (b"strict_priority", NULL_ONLY, SELECT_ROUTES, 0),
    (b"priority_tier", NULL_ONLY, SELECT_ROUTES, 0),
    (b"timeout_ms", IGNORED_NUMBER, SELECT_ROUTES, TIMEOUT_MS_MAX),
    (b"deadline_ms", IGNORED_NUMBER, SELECT_ROUTES, TIMEOUT_MS_MAX),
    (b"fairness_id", IGNORED_TEXT, SELECT_ROUTES, 0),
    (b"pinned_worker", NULL_ONLY, SELECT_ROUTES, 0),
    (b"allowed_worker_ids", NULL_ONLY, SELECT_ROUTES, 0),
    (b"track_prefill_tokens", NULL_ONLY, RESERVE_ROUTE, 0),
    (b"session_id", SESSION_ID, SELECT_ROUTES, 0),
    (b"session_context", NULL_ONLY, SELECT_ROUTES, 0),
    (b"affinity", NULL_ONLY, SELECT_ROUTES, 0),
    (b"affinity_target", NULL_ONLY, SELECT_ROUTES, 0),
    (b"local", LOCAL, PAIR_ROUTES, 0),
    (b"prefill", NULL_ONLY, PAIR_ROUTES, 0),
    (b"decode", NULL_ONLY, PAIR_ROUTES, 0),
    (b"topology", NULL_ONLY, PAIR_ROUTES, 0),
)
"""Key, entry in the fields, routes that accept the key, largest number.

U64_MAX itself is excluded: its 64 bits mean NONE.
"""
NEVER_NULL = (
    *(b"worker_id", b"dp_rank", b"model_name", b"tenant_id", b"routing_group"),
    b"local",
)
KEY_WORDS = words_of(*(key for key, _, _, _ in KEYS))
ENTRY_OF_KEY = np.array([entry for _, entry, _, _ in KEYS])
MAY_BE_NULL = np.array([key not in NEVER_NULL for key, _, _, _ in KEYS])
NULL, TRUE, FALSE = words_of(b"null"), words_of(b"true"), words_of(b"false")
LOCAL_RULES = words_of(b"auto", b"never", b"always")
TENANT_KEY = [key for key, _, _, _ in KEYS].index(b"tenant_id")
FRACTION_DIGITS_MAX = 15
"""Limit at which both the digits and the power of ten dividing them are exact as float64, so that
the quotient equals the result of every correct parser.
"""
ROUTES_OF_KEY = np.array([routes for _, _, routes, _ in KEYS])
MAX_OF_KEY = np.array([highest for _, _, _, highest in KEYS], np.uint64)


@compiled()
def read_number(data, at, end, highest):
    """Return (an unsigned integer up to `highest`, the offset after it or NOT_COMMON)."""
    behind = run_end(data, at, end, digit_mask)
    if behind in (at, end):
        return U(0), NOT_COMMON
    value, wrong = number_in(data, at, behind)
    return value, (behind if wrong == 0 and value <= highest else NOT_COMMON)


@compiled(error_model="numpy")
def read_fraction(data, at, end):
    """Return (a number from 0 to 1 without exponent, the offset after it or NOT_COMMON)."""
    point = run_end(data, at, end, digit_mask)
    if point != at + 1:
        return 0.0, NOT_COMMON
    value, behind = I(data[U(at)]) - ZERO, point
    if byte_at(data, point, end) == DOT:
        behind = run_end(data, point + 1, end, digit_mask)
        if not 1 <= behind - point - 1 <= FRACTION_DIGITS_MAX:
            return 0.0, NOT_COMMON
        for place in range(point + 1, behind):
            value = 10 * value + I(data[U(place)]) - ZERO
    scale = float(TEN_TO[max(behind - point - 1, 0)])
    fraction = float(value) / scale
    return fraction, (behind if fraction <= 1.0 else NOT_COMMON)


@compiled()
def read_null(data, at, end, key):
    """Return the offset after null where null is accepted, or NOT_COMMON."""
    is_null = at + 4 < end and index_of_text(data, at, at + 4, NULL, CASE_SENSITIVE) == 0
    return at + 4 if is_null and MAY_BE_NULL[key] else NOT_COMMON


@compiled()
def read_flag(data, at, end):
    """Return (1 for true and 0 for false, the offset after it or NOT_COMMON)."""
    value = I(byte_at(data, at, end) == SMALL_T)
    behind = at + 5 - value
    if behind >= end:
        return value, NOT_COMMON
    word = TRUE if value else FALSE
    is_flag = index_of_text(data, at, behind, word, CASE_SENSITIVE) == 0
    return value, (behind if is_flag else NOT_COMMON)


@compiled()
def read_text(data, at, end):
    """Return the offset after the closing quote of the text that begins at `at`, or NOT_COMMON."""
    behind = run_end(data, at, end, plain_text_mask)
    usual = byte_at(data, behind, end) == QUOTE and 0 < behind - at <= TEXT_BYTES_MAX
    return behind + 1 if usual else NOT_COMMON


@compiled()
def read_local_rule(data, at, end):
    """Return (the rule, the offset after it or NOT_COMMON)."""
    if byte_at(data, at, end) != QUOTE:
        return I(NONE), I(NOT_COMMON)
    behind = read_text(data, at + 1, end)
    if behind < 0:
        return I(NONE), I(NOT_COMMON)
    rule = I(index_of_text(data, at + 1, behind - 1, LOCAL_RULES, CASE_SENSITIVE))
    return rule, I(behind if rule != NONE else NOT_COMMON)


@compiled(forceinline=True)
def read_numbers(data, at, end, entry, lists):
    """Return (number of entries of the list that begins at `at`, the offset after the list)."""
    if byte_at(data, at, end) != OPEN_LIST:
        return NONE, NOT_COMMON
    blocks, sequence, tokens = lists
    if entry == N_TOKENS:
        return read_tokens(data, at + 1, end, tokens)
    return read_hashes(data, at + 1, end, blocks if entry == N_BLOCKS else sequence)


@compiled(forceinline=True)
def read_value(data, at, end, key, fields, lists):
    """Parse the value of a key; returns the offset after it or NOT_COMMON."""
    entry = ENTRY_OF_KEY[key]
    if byte_at(data, at, end) == SMALL_N:
        return read_null(data, at, end, key)
    if entry == NULL_ONLY:
        return NOT_COMMON
    if entry == IGNORED_NUMBER:
        _, behind = read_number(data, at, end, MAX_OF_KEY[key])
        return behind
    if entry == IGNORED_TEXT:
        return read_text(data, at + 1, end) if byte_at(data, at, end) == QUOTE else I(NOT_COMMON)
    if entry == DECAY_FRACTION:
        fraction, behind = read_fraction(data, at, end)
        fields[entry] = np.float64(fraction).view(np.int64)
        return behind
    if entry == RETURNS_HASHES:
        fields[entry], behind = read_flag(data, at, end)
        return behind
    if entry == LOCAL:
        fields[entry], behind = read_local_rule(data, at, end)
        return behind
    if entry >= SELECTION_ID:
        if byte_at(data, at, end) != QUOTE:
            return NOT_COMMON
        behind = read_text(data, at + 1, end)
        fields[entry], fields[entry + 1] = at + 1, behind - at - 2
        return behind
    if entry >= N_BLOCKS:
        fields[entry], behind = read_numbers(data, at, end, entry, lists)
        return behind if fields[entry] != NONE else NOT_COMMON
    fields[entry], behind = read_number(data, at, end, MAX_OF_KEY[key])
    return behind


@compiled(forceinline=True)
def read_member(data, at, end, fields, lists):
    """Parse a key and its value; returns the offset after them or NOT_COMMON."""
    if byte_at(data, at, end) != QUOTE:
        return NOT_COMMON
    behind = read_text(data, at + 1, end)
    if behind < 0:
        return NOT_COMMON
    key = index_of_text(data, at + 1, behind - 1, KEY_WORDS, CASE_SENSITIVE)
    if key == NONE or (ROUTES_OF_KEY[key] >> fields[ROUTE]) & (fields[KEYS_LEFT] >> key) & 1 == 0:
        return NOT_COMMON
    # tenant_id and routing_group share the entry: both together need the check for equality.
    if ENTRY_OF_KEY[key] == TENANT_ID and fields[TENANT_ID] != NONE:
        return NOT_COMMON
    # Each key clears its bit, so that a duplicate is seen as an unknown key.
    fields[KEYS_LEFT] ^= 1 << key
    at = skip_blanks(data, behind, end)
    if byte_at(data, at, end) != COLON:
        return NOT_COMMON
    at = skip_blanks(data, at + 1, end)
    return read_value(data, at, end, key, fields, lists)


@compiled(forceinline=True)
def read_object(data, at, end, fields, lists):
    """Parse the object that begins at `at`; returns the offset after it or NOT_COMMON."""
    if byte_at(data, at, end) != OPEN:
        return NOT_COMMON
    at = skip_blanks(data, at + 1, end)
    if byte_at(data, at, end) == CLOSE:
        return at + 1
    while at >= 0:
        at = read_member(data, at, end, fields, lists)
        if at >= 0:
            at = skip_blanks(data, at, end)
            mark = byte_at(data, at, end)
            if mark == CLOSE:
                return at + 1
            at = skip_blanks(data, at + 1, end) if mark == COMMA else NOT_COMMON
    return NOT_COMMON


@compiled()
def resolve_dialect(fields):
    """Set what depends on the names in a booking: its id, and whether the response has hashes."""
    if fields[RETURNS_HASHES] == NONE:
        # As `SelectAndReserveRequest.returns_hashes`.
        lacks_tenant = (fields[KEYS_LEFT] >> TENANT_KEY) & 1
        fields[RETURNS_HASHES] = lacks_tenant if fields[RESERVATION_ID] == NONE else 0
    fields[IS_SELECTION_NAMED] = I(fields[RESERVATION_ID] == NONE and fields[SELECTION_ID] != NONE)
    if fields[IS_SELECTION_NAMED] != 0:
        fields[RESERVATION_ID], fields[RESERVATION_ID + 1] = (
            fields[SELECTION_ID],
            fields[SELECTION_ID + 1],
        )


@compiled()
def has_common_session(fields):
    """Return whether the session is one that the fast path can follow."""
    if fields[ROUTE] == SELECT_PAIR or fields[ROUTE] == SELECT_PAIR_AND_RESERVE:
        return False
    # A selection that is kept for a later booking keeps its session, which records here have not.
    is_kept = fields[ROUTE] == SELECT and fields[SELECTION_ID] != NONE
    return fields[SESSION_ID + 1] <= SESSION_BYTES_MAX and not is_kept


@compiled()
def is_complete(fields):
    """Return whether the fields have a prompt in exactly one form, and all else the route needs."""
    if fields[ROUTE] >= PREFILL_COMPLETE:
        return True
    if fields[SESSION_ID] != NONE and not has_common_session(fields):
        return False
    fields[LOCAL] = max(fields[LOCAL], I(AUTO))
    if fields[ROUTE] != SELECT and fields[ROUTE] != SELECT_PAIR:
        resolve_dialect(fields)
    if fields[ROUTE] == RESERVE and (fields[RESERVATION_ID] == NONE or fields[WORKER_ID] == NONE):
        return False
    if fields[N_TOKENS] != NONE:
        # NONE is -1, all bits set: the conjunction is NONE only if all three are missing.
        fields_of_hashes = fields[N_BLOCKS] & fields[N_SEQUENCE] & fields[ISL_TOKENS]
        fields[ISL_TOKENS] = fields[N_TOKENS]
        return fields_of_hashes == NONE
    if fields[N_SEQUENCE] == NONE or fields[ISL_TOKENS] < 1:
        return False
    if fields[N_BLOCKS] == NONE:
        return fields[ROUTE] == RESERVE
    return fields[N_BLOCKS] == fields[N_SEQUENCE]


@compiled()
def read_body(data, at, end, fields, lists):
    """Parse the body [at, end) of a request with a parsed head: COMMON or NOT_COMMON.

    lists: tuple (blocks, sequence, tokens) of uint64[], uint64[] and uint32[], output; each is
    SPARE longer than its list may be
    """
    if at == end:
        return COMMON if fields[ROUTE] >= PREFILL_COMPLETE else NOT_COMMON
    if at < WINDOW:
        return NOT_COMMON
    behind = read_object(data, skip_blanks(data, at, end), end, fields, lists)
    if behind < 0 or skip_blanks(data, behind, end) != end:
        return NOT_COMMON
    return COMMON if is_complete(fields) else NOT_COMMON
