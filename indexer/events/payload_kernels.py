"""Compiled reader of the common KV event payloads: msgpack -> flat arrays in a single call.

Common is what vLLM and SGLang send all day: an array batch; events as arrays or as maps with
the names in WORDS; hashes as integers or raw bytes; tokens one by one or as EAGLE pairs; no
multimodal hash, no salt, no adapter without a name, no lookahead, nothing remote, no unknown field,
only ASCII text.  At the first uncommon or wrong thing
the reader gives up and `parser` reads the payload from the start, so this module never has to
describe an error.  In all other cases the result must equal the parser's.

A long payload is read in parts.  A call that stops within an event reads that event again on
continuing, except the hashes and tokens already read.  The caller must check events with more than
NAMES_AT_ONCE hashes for repeated hashes.

Source: the engines named in `parser`.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.events.duplicate_kernels import NAMES_AT_ONCE, may_have_duplicates
from indexer.events.msgpack_kernels import (
    BYTES,
    NIL,
    NONE,
    UNUSUAL,
    header_at,
    read_array_header,
    read_int,
    read_optional_u32,
    read_text,
    read_u32,
    skip_nils,
    skip_plain,
)
from indexer.events.payload_layout import (
    AT,
    BLOCK_SIZE,
    BUDGET,
    CLEARED,
    EVENTS_LEFT,
    GROUP_IDX,
    HAS_KEY_FIELDS,
    HAS_PARENT,
    HASH_END,
    HASH_START,
    HASHES,
    HASHES_AT,
    IGNORED,
    IS_ARRAY,
    IS_BIGRAM,
    LORA_ID,
    LORA_LEN,
    LORA_START,
    MEDIUM_LEN,
    MEDIUM_START,
    N_ELEMENTS,
    N_WORDS,
    PARENT,
    REMOVED,
    SPEC_LEN,
    SPEC_START,
    STOPPED,
    STORED,
    TAG,
    TOKEN_END,
    TOKEN_START,
    TOKENS,
    TOKENS_AT,
    TYPE,
    USED,
    W_BLOCK_HASHES,
    W_BLOCK_SIZE,
    W_EXTRA_KEYS,
    W_GROUP_IDX,
    W_LOCAL,
    W_LOCALITY,
    W_LOOKAHEAD,
    W_LORA_ID,
    W_LORA_NAME,
    W_MEDIUM,
    W_PARENT,
    W_SPEC_KIND,
    W_TOKEN_IDS,
    W_WINDOW,
    WINDOW,
    WORD_BYTES,
    WORD_STARTS,
)
from indexer.jit.decorators import compiled

TAIL_SPEC_FIELDS, TAIL_NUMBERS = 3, 2  # as in parser
PAIR_HEADER = 0x92  # an array of two


@compiled()
def word_of(buf, first, length):
    """Return the number of the word in WORDS at this position, or NONE."""
    for word in range(N_WORDS):
        start = WORD_STARTS[word]
        if WORD_STARTS[word + 1] - start != length:
            continue
        k = 0
        while k < length and buf[first + k] == WORD_BYTES[start + k]:
            k += 1
        if k == length:
            return word
    return NONE


@compiled()
def read_hash(buf, at):
    """Read (engine hash, next index): an integer, or the last eight bytes of a bin, big-endian."""
    left = buf.shape[0] - at
    if left < 2:
        value, after = read_int(buf, at)
        return np.uint64(value), after
    tag = np.int64(buf[at])
    if tag == 0xC4:
        length = np.int64(buf[at + 1])
        if length < 8 or left < 2 + length:
            return np.uint64(0), UNUSUAL
        after = at + 2 + length
    elif (tag == 0xCF or tag == 0xD3) and left >= 9:
        after = at + 9
    else:
        value, after = read_int(buf, at)
        return np.uint64(value), after
    value = np.uint64(0)
    for k in range(8):
        value = (value << np.uint64(8)) | np.uint64(buf[after - 8 + k])
    return value, after


@compiled()
def budgeted_end(job, done, count):
    """Return the end of the part of `count` elements, `done` already read, within the budget."""
    stop = min(count, done + max(job[BUDGET], 0))
    job[BUDGET] -= stop - done
    return stop


@compiled()
def read_hashes(buf, at, job, row, hashes):
    """Append an array of engine hashes to `hashes`, at row[HASH_END]; return the next index."""
    count, at = read_array_header(buf, at)
    # Every element takes a byte at least, so a false length cannot write beyond the output.
    if at < 0 or count > buf.shape[0] - at:
        return UNUSUAL
    end, first = row[HASH_END], job[HASHES]
    at = job[HASHES_AT] if first > 0 else at
    stop = budgeted_end(job, first, count)
    for k in range(first, stop):
        hashes[end + k], at = read_hash(buf, at)
        if at < 0:
            return UNUSUAL
    job[HASHES], job[HASHES_AT] = stop, at
    if stop < count:
        return STOPPED
    row[HASH_END] = end + count
    return at


@compiled()
def read_pairs(buf, at, count, job, row, tokens):
    """Append `count` EAGLE pairs [t0, t1], [t1, t2], ... as t0, t1, t2, ...; see read_tokens."""
    end, first = row[TOKEN_END], job[TOKENS]
    at = job[TOKENS_AT] if first > 0 else at
    stop = budgeted_end(job, first, count)
    for k in range(first, stop):
        if at >= buf.shape[0] or buf[at] != PAIR_HEADER:
            return UNUSUAL
        tokens[end + k], at = read_u32(buf, at + 1)
        if at < 0:
            return UNUSUAL
        tokens[end + k + 1], at = read_u32(buf, at)
        if at < 0:
            return UNUSUAL
    job[TOKENS], job[TOKENS_AT] = stop, at
    if stop < count:
        return STOPPED
    row[TOKEN_END] = end + count + 1
    row[IS_BIGRAM] = 1
    return at


@compiled()
def read_tokens(buf, at, job, row, tokens):
    """Append an array of tokens to `tokens`, at row[TOKEN_END]; return the next index."""
    count, at = read_array_header(buf, at)
    if at < 0 or count > buf.shape[0] - at:
        return UNUSUAL
    if count > 0 and buf[at] == PAIR_HEADER:
        return read_pairs(buf, at, count, job, row, tokens)
    end, first = row[TOKEN_END], job[TOKENS]
    at = job[TOKENS_AT] if first > 0 else at
    stop = budgeted_end(job, first, count)
    for k in range(first, stop):
        if buf.shape[0] - at >= 5 and (buf[at] == 0xCD or buf[at] == 0xCE):
            # Ids of 16 and of 32 bits alternate at random: a branch on the width would be slow.
            wide = np.int64(buf[at]) - 0xCD
            four = np.int64(buf[at + 1]) << 24 | np.int64(buf[at + 2]) << 16
            four |= np.int64(buf[at + 3]) << 8 | np.int64(buf[at + 4])
            tokens[end + k] = four >> (16 - 16 * wide)
            at += 3 + 2 * wide
            continue
        value, at = read_u32(buf, at)
        if at < 0:
            return UNUSUAL
        tokens[end + k] = value
    job[TOKENS], job[TOKENS_AT] = stop, at
    if stop < count:
        return STOPPED
    row[TOKEN_END] = end + count
    return at


@compiled()
def read_number_field(buf, at, word, row):
    """Write a numeric field to the column; return the next index."""
    if word == W_PARENT:
        if at < buf.shape[0] and buf[at] == NIL:
            return at + 1
        parent, after = read_hash(buf, at)
        row[HAS_PARENT], row[PARENT] = 1, np.int64(parent)
        return after
    if word == W_BLOCK_SIZE:
        row[BLOCK_SIZE], after = read_u32(buf, at)
        return after
    column = GROUP_IDX
    if word == W_WINDOW:
        column = WINDOW
    elif word == W_LORA_ID:
        column = LORA_ID
    row[column], after = read_optional_u32(buf, at)
    if row[LORA_ID] == 0:
        row[LORA_ID] = NONE  # of publishers without adapters
    return after


@compiled()
def read_text_field(buf, at, word, row):
    """Write a string or nil to the columns of the field; return the next index."""
    length, first = read_text(buf, at)
    if first < 0:
        return UNUSUAL
    column = MEDIUM_START
    if word == W_LORA_NAME:
        column = LORA_START
    elif word == W_SPEC_KIND:
        column = SPEC_START
    row[column] = first
    row[column + 1] = length
    return first + max(length, 0)


@compiled()
def read_field(buf, at, word, job, row, elements):
    """Read the value of the field named by `word`; return the next index, negative on failure.

    elements: (hashes, tokens)
    """
    hashes, tokens = elements
    if word == W_BLOCK_HASHES:
        return read_hashes(buf, at, job, row, hashes)
    if word == W_TOKEN_IDS:
        return read_tokens(buf, at, job, row, tokens)
    if word in (W_PARENT, W_BLOCK_SIZE, W_GROUP_IDX, W_WINDOW, W_LORA_ID):
        return read_number_field(buf, at, word, row)
    if word in (W_MEDIUM, W_LORA_NAME, W_SPEC_KIND):
        return read_text_field(buf, at, word, row)
    if word == W_EXTRA_KEYS:
        return skip_nils(buf, at)
    if word == W_LOOKAHEAD:
        return at + 1 if at < buf.shape[0] and (buf[at] == NIL or buf[at] == 0x90) else UNUSUAL
    if word == W_LOCALITY:
        length, first = read_text(buf, at)
        if first < 0 or length == NONE:
            return first
        return first + length if word_of(buf, first, length) == W_LOCAL else UNUSUAL
    return skip_plain(buf, at)


@compiled()
def read_tail(buf, at, count, row):
    """Read `count` elements identified by type; return the next index or UNUSUAL."""
    n_numbers = 0
    for position in range(count):
        length, first = read_text(buf, at)
        if first < 0:
            number, at = read_u32(buf, at)
            if at < 0 or n_numbers == TAIL_NUMBERS:
                return UNUSUAL
            row[GROUP_IDX if n_numbers == 0 else WINDOW] = number
            n_numbers += 1
            continue
        at = first + max(length, 0)
        if length == NONE:
            continue
        # Texts that could be LOCAL or REMOTE are left to the parser, with its full comparison.
        letter = buf[first] | 0x20 if length == 5 or length == 6 else 0
        may_be_locality = letter == 0x6C or letter == 0x72 or position >= TAIL_SPEC_FIELDS
        if may_be_locality or row[SPEC_LEN] != NONE:
            return UNUSUAL
        row[SPEC_START], row[SPEC_LEN] = first, length
    return at


@compiled()
def read_array_event(buf, at, job, row, hashes, tokens):
    """Read [tag, field, ...]; return the next index, negative on failure."""
    count, at = read_array_header(buf, at)
    if at < 0 or count < 1:
        return UNUSUAL
    length, first = read_text(buf, at)
    if first < 0:
        return UNUSUAL
    row[TAG], row[IS_ARRAY] = word_of(buf, first, length), 1
    at = first + max(length, 0)
    if row[TAG] == STORED and count >= 5:
        named = min(count, 9)
        row[HAS_KEY_FIELDS] = named > W_LORA_NAME - TYPE
        for position in range(1, named):
            at = read_field(buf, at, TYPE + position, job, row, (hashes, tokens))
            if at < 0:
                return at
        return read_tail(buf, at, count - named, row)
    if row[TAG] == REMOVED and count >= 2:
        at = read_hashes(buf, at, job, row, hashes)
        if at >= 0 and count > 2:
            at = read_text_field(buf, at, W_MEDIUM, row)
        return read_tail(buf, at, count - min(count, 3), row) if at >= 0 else at
    is_bare = count == 1 and (row[TAG] == CLEARED or row[TAG] == IGNORED)
    return at if is_bare else UNUSUAL


@compiled()
def read_map_event(buf, at, job, row, hashes, tokens):
    """Read {"type": tag, field: value, ...}; return the next index, negative on failure."""
    size, members = header_at(buf, at)
    if size < 0:
        return UNUSUAL
    at += size
    seen = 0
    for _pair in range(members // 2):
        length, first = read_text(buf, at)
        if first < 0:
            return UNUSUAL
        word = word_of(buf, first, length)
        if word < TYPE or word == W_LOCAL or (seen >> word) & 1 == 1:
            return UNUSUAL
        seen |= 1 << word
        at = first + length
        if word == TYPE:
            length, first = read_text(buf, at)
            if first < 0:
                return UNUSUAL
            row[TAG] = word_of(buf, first, length)
            at = first + max(length, 0)
        else:
            at = read_field(buf, at, word, job, row, (hashes, tokens))
        if at < 0:
            return at
    needed = 1 << TYPE
    row[HAS_KEY_FIELDS] = ((seen >> W_LORA_NAME) | (seen >> W_EXTRA_KEYS)) & 1
    row[IS_ARRAY] = 0
    if row[TAG] == STORED:
        needed |= 1 << W_BLOCK_HASHES | 1 << W_TOKEN_IDS | 1 << W_BLOCK_SIZE
    elif row[TAG] == REMOVED:
        needed |= 1 << W_BLOCK_HASHES
    is_known = NONE < row[TAG] < TYPE
    return at if is_known and seen & needed == needed else UNUSUAL


@compiled()
def has_possible_duplicates(row, hashes):
    """Return False if the engine hashes of a stored event and the parent are all different.

    The hashes of very large events are compared with the parent only.
    """
    own = hashes[row[HASH_START] : row[HASH_END]]
    if row[HAS_PARENT] == 1:
        parent = np.uint64(row[PARENT])
        for value in own:
            if value == parent:
                return True
    return 1 < own.shape[0] <= NAMES_AT_ONCE and may_have_duplicates(own)


@compiled()
def clear_row(row, n_hashes, n_tokens):
    """Prepare a row for an event with hashes and tokens from these positions on."""
    row[:] = 0
    row[HASH_START] = row[HASH_END] = n_hashes
    row[TOKEN_START] = row[TOKEN_END] = n_tokens
    row[GROUP_IDX] = row[MEDIUM_LEN] = row[LORA_LEN] = row[SPEC_LEN] = NONE
    row[WINDOW] = row[LORA_ID] = NONE


@compiled()
def read_event(buf, job, row, hashes, tokens):
    """Read the event at job[AT]; return the next index, negative on failure."""
    at = job[AT]
    if at < buf.shape[0] and (buf[at] < 0x90 or buf[at] >= 0xDE):
        at = read_map_event(buf, at, job, row, hashes, tokens)
    else:
        at = read_array_event(buf, at, job, row, hashes, tokens)
    if at < 0 or row[TAG] != STORED:
        return at
    is_nameless = row[LORA_ID] != NONE and row[LORA_LEN] <= 0
    return UNUSUAL if is_nameless or has_possible_duplicates(row, hashes) else at


@compiled()
def read_events(buf, job, rows, hashes, tokens):
    """Continue with the array of events; return the next index, negative on failure."""
    while job[EVENTS_LEFT] > 0:
        if job[BUDGET] <= 0:
            return STOPPED
        used, n_hashes, n_tokens = job[USED], 0, 0
        if used > 0:
            n_hashes, n_tokens = rows[used - 1, HASH_END], rows[used - 1, TOKEN_END]
        clear_row(rows[used], n_hashes, n_tokens)
        at = read_event(buf, job, rows[used], hashes, tokens)
        if at < 0:
            return at
        job[AT] = at
        job[EVENTS_LEFT] -= 1
        job[USED] += rows[used, TAG] != IGNORED
        job[BUDGET] -= 1
        job[HASHES] = job[TOKENS] = 0
    return job[AT]


@compiled()
def begin_batch(buf, job, rows_max):
    """Read a batch up to the first event.  Return False for anything else."""
    count, at = read_array_header(buf, 0)
    if at < 0 or count < 2 or count > 3 or buf.shape[0] - at < 9:
        return False
    if buf[at] == 0xCB:
        at += 9
    else:
        _, at = read_int(buf, at)
        if at < 0:
            return False
    n_events, at = read_array_header(buf, at)
    job[AT], job[N_ELEMENTS], job[EVENTS_LEFT] = at, count, n_events
    job[USED] = job[HASHES] = job[TOKENS] = 0
    return at >= 0 and n_events <= rows_max


@compiled(f"UniTuple(int64, 2)({BYTES}, int64[::1], int64[:, ::1], uint64[::1], uint32[::1])")
def scan_batch(buf, job, rows, hashes, tokens):
    """Read a batch, or continue with a batch.  Return (rows used, rank or NONE).

    The rows used are UNUSUAL on giving up, and STOPPED if the budget was spent before the end.
    buf:    uint8 [n], the payload; bytes after the batch are ignored
    job:    int64 [JOB_LENGTH]; set BUDGET before each call, and AT to 0 before the first
    rows:   int64 [n_rows, N_COLUMNS], out, one row per event that is not ignored; more than n_rows
            events are unusual
    hashes: uint64 [n], out, engine hashes of all events; a row has the event's range
    tokens: uint32 [n], out, likewise
    """
    if job[AT] == 0 and not begin_batch(buf, job, rows.shape[0]):
        return UNUSUAL, NONE
    at = read_events(buf, job, rows, hashes, tokens)
    if at < 0:
        return at, NONE
    rank = NONE
    if job[N_ELEMENTS] == 3:
        rank, at = read_optional_u32(buf, at)
    return (job[USED], rank) if at >= 0 else (UNUSUAL, NONE)
