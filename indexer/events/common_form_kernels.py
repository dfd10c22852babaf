"""Compiled reader of runs of usual messages: from bytes to changes of a slot.

A usual message resembles earlier messages of the stream: batches of the own rank with removals,
and stores of the block size, whose medium, attention group and kind were judged once (`usual`).
The first other message ends the run and goes through `kv_events` and `batch_applier`; for usual
messages this module must have the same effect.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.events.message_batch_layout import (
    END,
    IS_NUMBERED,
    LIVE_FRAMES,
    MESSAGES,
    N_FRAMES,
    NUMBER,
    PAYLOAD,
    STARTS,
)
from indexer.events.msgpack_kernels import BYTES, NONE, UNUSUAL
from indexer.events.payload_kernels import scan_batch
from indexer.events.payload_layout import (
    AT,
    BLOCK_SIZE,
    BUDGET,
    GROUP_IDX,
    HAS_PARENT,
    HASH_END,
    HASH_START,
    IS_BIGRAM,
    JOB_LENGTH,
    LORA_LEN,
    MEDIUM_LEN,
    MEDIUM_START,
    NO_BUDGET,
    PARENT,
    SPEC_LEN,
    SPEC_START,
    STORED,
    TAG,
    TOKEN_END,
    TOKEN_START,
)
from indexer.hashing.xxh3_kernels import derive_secret, hash_window, secret_buffer
from indexer.index import change_kernels as changing
from indexer.index.holder_kernels import holder_tier
from indexer.jit.decorators import compiled
from indexer.jit.memory_kernels import stack_array

U = np.uint64

a_job = stack_array("int64", JOB_LENGTH)

NAMES_MAX = 2048
"""Limit of hashes after which a run gets no further message."""

# Layout of the usual forms: first the stream, then up to FORMS_MAX forms of events.
RANK, SIZE, IS_EAGLE, SEED, KEYS, N_FORMS, TOPIC_LEN, TOPIC = range(8)
TOPIC_MAX = 256
NO_TOPIC = -2  # length that no topic has
FORMS = TOPIC + TOPIC_MAX
# Bits of KEYS: sequences with a salt, which continues below a parent; blocks with any key, which
# events of lower tiers may leave out.
HAS_SALTS, HAS_KEYS = 1, 2
FORMS_MAX = 8
TEXT_MAX = 24
# Layout of a form.  A length of NONE means that there is no text.
F_TAG, F_HOLDER, F_GROUP, F_MEDIUM_LEN, F_KIND_LEN, F_MEDIUM = range(6)
F_KIND = F_MEDIUM + TEXT_MAX
FORM_LENGTH = F_KIND + TEXT_MAX
COMMON_FORMS_LENGTH = FORMS + FORMS_MAX * FORM_LENGTH


@compiled()
def _equals_text(buf, first, length, usual, at, expected):
    k = 0
    while k < min(length, expected) and buf[first + k] == usual[at + k]:
        k += 1
    return length == expected and k == max(length, 0)


@compiled()
def _has_form(buf, row, usual, at):
    medium, kind = usual[at + F_MEDIUM_LEN], usual[at + F_KIND_LEN]
    return (
        usual[at + F_TAG] == row[TAG]
        and usual[at + F_GROUP] == row[GROUP_IDX]
        and _equals_text(buf, row[MEDIUM_START], row[MEDIUM_LEN], usual, at + F_MEDIUM, medium)
        and _equals_text(buf, row[SPEC_START], row[SPEC_LEN], usual, at + F_KIND, kind)
    )


@compiled()
def _holder_of(buf, row, usual):
    """Return the holder of the event's form; NONE if no form matches."""
    for form in range(usual[N_FORMS]):
        at = FORMS + form * FORM_LENGTH
        if _has_form(buf, row, usual, at):
            return usual[at + F_HOLDER]
    return NONE


@compiled()
def _hash_blocks(row, usual, tokens, shifted, out):
    """Hash the leading whole blocks of a stored event; return the count.

    Equal to `event_types.local_hashes`.
    """
    size = usual[SIZE]
    n_blocks = row[HASH_END] - row[HASH_START]
    n_tokens = row[TOKEN_END] - row[TOKEN_START]
    # Adapters change the seed, and events without tokens need the Python path.
    if row[BLOCK_SIZE] != size or n_tokens == 0 or row[LORA_LEN] > 0:
        return 0
    is_longer = usual[IS_EAGLE] != 0 and n_tokens > n_blocks * size
    has_next = row[IS_BIGRAM] == 1 or is_longer
    n_filled = (n_tokens - has_next) // size
    # The Python path counts events that name only some blocks, or contradict is_eagle.
    if n_filled > n_blocks or (usual[IS_EAGLE] != 0 and not has_next):
        return 0
    window = size + has_next
    n_hashes = min(n_blocks, n_filled)
    for k in range(n_hashes):
        at = U(row[TOKEN_START] + k * size)
        out[k] = hash_window(tokens, at, U(window), U(usual[SEED]), shifted)
    return n_hashes


@compiled()
def _has_other_keys(usual, row, holder):
    """Return whether a stored event may have keys that the event itself leaves out."""
    is_lower_tier = holder_tier(holder) != 0
    is_salted = row[HAS_PARENT] == 1 and usual[KEYS] & HAS_SALTS != 0
    return is_salted or (is_lower_tier and usual[KEYS] & HAS_KEYS != 0)


@compiled()
def _read_change(buf, row, usual, hashing, change, blocks):
    """Write the change of a usual event.  Return False for an unusual one.

    hashing: (tokens, shifted secret)
    change:  in, BEGIN: index in `blocks` of the first hash of the message
    """
    holder = _holder_of(buf, row, usual)
    if holder == NONE:
        return False
    begin = change[changing.BEGIN] + row[HASH_START]
    length = row[HASH_END] - row[HASH_START]
    if row[TAG] == STORED:
        if _has_other_keys(usual, row, holder):
            return False
        tokens, shifted = hashing
        length = _hash_blocks(row, usual, tokens, shifted, blocks[begin:])
        if length <= 0:
            return False
    change[changing.IS_STORE] = row[TAG] == STORED
    change[changing.HOLDER] = holder
    change[changing.IS_BELOW] = row[HAS_PARENT]
    change[changing.PARENT] = row[PARENT]
    change[changing.EVERY_COPY] = 0
    change[changing.BEGIN] = begin
    change[changing.STOP] = begin + length
    change[changing.AT] = change[changing.COUNT] = 0
    return True


@compiled()
def _is_next(buf, message, number, usual):
    """Return whether a message has this number and the topic of the stream."""
    if message[N_FRAMES] != LIVE_FRAMES or message[IS_NUMBERED] != 1 or message[NUMBER] != number:
        return False
    first = message[STARTS]
    return _equals_text(buf, first, message[STARTS + 1] - first, usual, TOPIC, usual[TOPIC_LEN])


@compiled(
    f"int64({BYTES}, {MESSAGES}, int64, int64, int64[::1], Tuple((int64[:, ::1], uint32[::1],"
    " int64[:, ::1], uint64[::1], uint64[::1], int64[::1])))"
)
def read_common_run(buf, messages, first, number, usual, memory):
    """Read the usual messages of messages[first:], numbered consecutively from `number` on.

    Returns the count, limited by the space in the arrays and by NAMES_MAX.
    buf, messages: a run, see `message_batch_layout`
    usual:   int64 [COMMON_FORMS_LENGTH]
    memory:  (rows, tokens, changes, names, blocks, ends)
    rows:    int64 [n, N_COLUMNS], scratch; a message of more events is unusual
    tokens:  uint32 [n], scratch; a message of more than n bytes is unusual
    changes: int64 [n, CHANGE_LENGTH], out, not fewer than rows
    names, blocks: uint64 [n], out, the hashes that changes refer to
    ends:    int64 [n], out, by message, beginning with 0: the changes up to its end
    """
    rows, tokens, changes, names, blocks, ends = memory
    shifted = secret_buffer()
    derive_secret(U(usual[SEED]), shifted)
    job = a_job()
    n_read, n_names, n_changes = 0, 0, 0
    while first + n_read < messages.shape[0] and n_read < ends.shape[0] and n_names < NAMES_MAX:
        message = messages[first + n_read]
        size = message[END] - message[PAYLOAD]
        if not _is_next(buf, message, number + n_read, usual) or size > tokens.shape[0]:
            break
        # A message has fewer hashes than bytes, so the test before reading needs only its size.
        if n_names + size > names.shape[0] or n_changes + rows.shape[0] > changes.shape[0]:
            break
        payload = buf[message[PAYLOAD] : message[END]]
        job[AT], job[BUDGET] = 0, NO_BUDGET
        used, rank = scan_batch(payload, job, rows, names[n_names:], tokens)
        if used == UNUSUAL or (rank != NONE and rank != usual[RANK]):
            break
        e = 0
        while e < used:
            change = changes[n_changes + e]
            change[changing.BEGIN] = n_names
            if not _read_change(payload, rows[e], usual, (tokens, shifted), change, blocks):
                break
            e += 1
        if e < used:
            break
        if used > 0:
            n_names += rows[used - 1, HASH_END]
        n_changes += used
        ends[n_read] = n_changes
        n_read += 1
    return n_read
