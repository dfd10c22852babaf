"""Names of reservations: kept in chains of chunks, found by hash in a table that grows by buckets.

The table is linear hashing: whenever there are more names than buckets one bucket is split, so that
no step is longer than a few names.  Chunks are the only storage of variable length: a name, padded
to words with zeros, and the sequence hashes behind it; or the block hashes of a prompt.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled
from indexer.index.state_kernels import i32_view, i64_view, u64_view
from select_service.core.load.ledger_layout import (
    BUCKETS,
    CHAIN,
    CHUNK_WORDS,
    CHUNKS,
    CHUNKS_TAKEN,
    CHUNKS_USED,
    COUNT,
    FIELDS,
    FREE_CHUNK,
    HEADS,
    NAME_BYTES,
    NAME_HASH,
    NEXT_CHUNK,
    NEXT_NAME,
    ROWS,
    SEED,
)
from select_service.core.load.table_kernels import mix

U64 = np.uint64
I64 = np.int64
I32 = np.int32


@compiled(forceinline=True)
def words_of(n_bytes):
    """Words that a name takes."""
    return (n_bytes + 7) >> 3


@compiled()
def word_of(name, number):
    """Word of a name: its bytes, the first the lowest; zeros behind its end."""
    word = U64(0)
    for byte in range(min(8, len(name) - 8 * number)):
        word |= U64(name[8 * number + byte]) << U64(8 * byte)
    return word


@compiled()
def hash_of(name, seed):
    """64-bit hash of a name."""
    found = mix(seed ^ U64(len(name)))
    for number in range(words_of(len(name))):
        found = mix(found ^ word_of(name, number))
    return found


@compiled()
def _bucket_of(name_hash, buckets):
    """Of 2**k + s buckets the first s are split, so that one more bit counts for them."""
    power = I64(1)
    while 2 * power <= buckets:
        power *= 2
    bucket = I64(name_hash & U64(2 * power - 1))
    return bucket if bucket < buckets else bucket - power


@compiled()
def _has_name(h, chain, name):
    chunks, after = u64_view(h, CHUNKS), i32_view(h, NEXT_CHUNK)
    for number in range(words_of(len(name))):
        if number != 0 and number % CHUNK_WORDS == 0:
            chain = I64(after[chain])
        if chunks[chain * CHUNK_WORDS + number % CHUNK_WORDS] != word_of(name, number):
            return False
    return True


@compiled()
def find_name(h, name, name_hash):
    """The row of a name, 0 when there is none."""
    rows, heads = i64_view(h, ROWS), i32_view(h, HEADS)
    row = I64(heads[_bucket_of(name_hash, h[BUCKETS])])
    while row != 0:
        at = row * FIELDS
        if (
            U64(rows[at + NAME_HASH]) == name_hash
            and rows[at + NAME_BYTES] == len(name)
            and _has_name(h, rows[at + CHAIN], name)
        ):
            return row
        row = rows[at + NEXT_NAME]
    return row


@compiled()
def _put_first(rows, heads, bucket, row):
    rows[row * FIELDS + NEXT_NAME] = heads[bucket]
    heads[bucket] = I32(row)


@compiled()
def _split(h, rows, heads):
    """One bucket more."""
    new = h[BUCKETS]
    power = I64(1)
    while 2 * power <= new:
        power *= 2
    row = I64(heads[new - power])
    heads[new - power] = I32(0)
    h[BUCKETS] = new + 1
    while row != 0:
        following = rows[row * FIELDS + NEXT_NAME]
        bucket = _bucket_of(U64(rows[row * FIELDS + NAME_HASH]), new + 1)
        _put_first(rows, heads, bucket, row)
        row = following


@compiled()
def enter_name(h, row):
    """Let a row be found by the hash it says."""
    rows, heads = i64_view(h, ROWS), i32_view(h, HEADS)
    if h[COUNT] >= h[BUCKETS] and h[BUCKETS] < heads.shape[0]:
        _split(h, rows, heads)
    bucket = _bucket_of(U64(rows[row * FIELDS + NAME_HASH]), h[BUCKETS])
    _put_first(rows, heads, bucket, row)


@compiled()
def delete_name(h, row):
    """Let it be found no more."""
    rows, heads = i64_view(h, ROWS), i32_view(h, HEADS)
    bucket = _bucket_of(U64(rows[row * FIELDS + NAME_HASH]), h[BUCKETS])
    following = rows[row * FIELDS + NEXT_NAME]
    other = I64(heads[bucket])
    if other == row:
        heads[bucket] = I32(following)
        return
    while rows[other * FIELDS + NEXT_NAME] != row:
        other = rows[other * FIELDS + NEXT_NAME]
    rows[other * FIELDS + NEXT_NAME] = following


@compiled()
def chunks_of(words):
    """Chunks that so many words take; a chain has one at least."""
    return max(1, (words + CHUNK_WORDS - 1) // CHUNK_WORDS)


@compiled()
def has_chunks(h, more):
    """Row of NEXT_CHUNK are chunks; the first stands for none."""
    return h[CHUNKS_TAKEN] + more < h[NEXT_CHUNK + 1]


@compiled()
def _take_chunk(h, after):
    chunk = h[FREE_CHUNK]
    if chunk != 0:
        h[FREE_CHUNK] = after[chunk]
    else:
        chunk = h[CHUNKS_USED]
        h[CHUNKS_USED] = chunk + 1
    after[chunk] = I32(0)
    return chunk


@compiled()
def _chunk_for(h, after, chunk, number):
    """Where word `number` of a chain goes; chunk: where the one before it is, its last."""
    if number == 0 or number % CHUNK_WORDS != 0:
        return chunk
    following = _take_chunk(h, after)
    after[chunk] = I32(following)
    return following


@compiled()
def put_hashes(h, hashes):
    """A chain with hashes alone, as `put_chain`."""
    chunks, after = u64_view(h, CHUNKS), i32_view(h, NEXT_CHUNK)
    first = chunk = _take_chunk(h, after)
    for number in range(hashes.shape[0]):
        chunk = _chunk_for(h, after, chunk, number)
        chunks[chunk * CHUNK_WORDS + number % CHUNK_WORDS] = hashes[number]
    h[CHUNKS_TAKEN] += chunks_of(hashes.shape[0])
    return first


@compiled()
def put_chain(h, name, hashes):
    """A chain with a name and hashes, for which there are chunks; returns its first chunk."""
    chunks, after = u64_view(h, CHUNKS), i32_view(h, NEXT_CHUNK)
    n_name = words_of(len(name))
    n_words = n_name + hashes.shape[0]
    first = chunk = _take_chunk(h, after)
    for number in range(n_words):
        chunk = _chunk_for(h, after, chunk, number)
        word = word_of(name, number) if number < n_name else hashes[number - n_name]
        chunks[chunk * CHUNK_WORDS + number % CHUNK_WORDS] = word
    h[CHUNKS_TAKEN] += chunks_of(n_words)
    return first


@compiled()
def free_chain(h, first, words):
    """Give the chunks of a chain of so many words back."""
    after = i32_view(h, NEXT_CHUNK)
    last = first
    while after[last] != 0:
        last = I64(after[last])
    after[last] = I32(h[FREE_CHUNK])
    h[FREE_CHUNK] = first
    h[CHUNKS_TAKEN] -= chunks_of(words)


@compiled()
def copy_words(h, chunk, first, out):
    """out[:] = words of a chain, from the word `first` on."""
    chunks, after = u64_view(h, CHUNKS), i32_view(h, NEXT_CHUNK)
    for _ in range(first // CHUNK_WORDS):
        chunk = I64(after[chunk])
    at = first % CHUNK_WORDS
    for number in range(out.shape[0]):
        if at == CHUNK_WORDS:
            chunk, at = I64(after[chunk]), 0
        out[number] = chunks[chunk * CHUNK_WORDS + at]
        at += 1


@compiled()
def seed_of(h):
    return U64(h[SEED])
