"""Names of reservations: stored in chains of chunks, found by hash in a table growing by buckets.

The table uses linear hashing: with more names than buckets, one bucket is split, so every step
handles only a few names.  Chunks are the only storage of variable length.  A chain has a name,
padded to words with zeros, followed by the sequence hashes; or the block hashes of a prompt.
"""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would
# prove nothing.

import numpy as np

from indexer.index.header_kernels import i32_view, i64_view, u64_view
from indexer.jit.decorators import compiled
from indexer.jit.memory_kernels import word_at
from select_service.core.load.compiled.ledger_layout import (
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
from select_service.core.load.compiled.table_kernels import mix_hash

U64 = np.uint64
I64 = np.int64
I32 = np.int32


@compiled(forceinline=True)
def words_for(n_bytes):
    """Return the number of words of a name."""
    return (n_bytes + 7) >> 3


@compiled()
def read_name_word(name, number):
    """Return a word of a name, little-endian, padded with zeros; number < words_for(len(name))."""
    length = len(name)
    behind = 8 * number + 8 - length
    if behind <= 0:
        return word_at(name, 8 * number)
    if length >= 8:
        return word_at(name, length - 8) >> U64(8 * behind)
    word = U64(0)
    for byte in range(8 * number, length):
        word |= U64(name[U64(byte)]) << U64(8 * byte)
    return word


@compiled()
def hash_name(name, seed):
    """Return the 64-bit hash of a name."""
    found = mix_hash(seed ^ U64(len(name)))
    for number in range(words_for(len(name))):
        found = mix_hash(found ^ read_name_word(name, number))
    return found


@compiled()
def _bucket_of(name_hash, buckets):
    """Return the bucket of a hash.

    Of 2**k + s buckets the first s are split and use one more bit of the hash.
    """
    power = I64(1)
    while 2 * power <= buckets:
        power *= 2
    bucket = I64(name_hash & U64(2 * power - 1))
    return bucket if bucket < buckets else bucket - power


@compiled()
def _has_name(h, chain, name):
    chunks, after = u64_view(h, CHUNKS), i32_view(h, NEXT_CHUNK)
    for number in range(words_for(len(name))):
        if number != 0 and number % CHUNK_WORDS == 0:
            chain = I64(after[chain])
        if chunks[chain * CHUNK_WORDS + number % CHUNK_WORDS] != read_name_word(name, number):
            return False
    return True


@compiled()
def find_name(h, name, name_hash):
    """Return the row of a name, 0 without such a row."""
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
def _push_row(rows, heads, bucket, row):
    rows[row * FIELDS + NEXT_NAME] = heads[bucket]
    heads[bucket] = I32(row)


@compiled()
def _split_bucket(h, rows, heads):
    """Split a bucket in two."""
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
        _push_row(rows, heads, bucket, row)
        row = following


@compiled()
def enter_name(h, row):
    """Make a row findable by its hash."""
    rows, heads = i64_view(h, ROWS), i32_view(h, HEADS)
    if h[COUNT] >= h[BUCKETS] and h[BUCKETS] < heads.shape[0]:
        _split_bucket(h, rows, heads)
    bucket = _bucket_of(U64(rows[row * FIELDS + NAME_HASH]), h[BUCKETS])
    _push_row(rows, heads, bucket, row)


@compiled()
def delete_name(h, row):
    """Remove a row from the table of names."""
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
def chunks_for(words):
    """Return the number of chunks for `words` words; a chain has at least one."""
    return max(1, (words + CHUNK_WORDS - 1) // CHUNK_WORDS)


@compiled()
def has_chunks(h, more):
    """Return whether `more` chunks are free; chunk 0 is unused."""
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
    """Return the chunk for word `number` of a chain.

    chunk: last chunk of the chain, with the word before
    """
    if number == 0 or number & (CHUNK_WORDS - 1) != 0:
        return chunk
    following = _take_chunk(h, after)
    after[chunk] = I32(following)
    return following


@compiled()
def _append_hashes(h, chunk, number, hashes):
    """Write hashes behind the first `number` words of a chain, which end in `chunk`."""
    chunks, after = u64_view(h, CHUNKS), i32_view(h, NEXT_CHUNK)
    done = I64(0)
    while done < hashes.shape[0]:
        chunk = _chunk_for(h, after, chunk, number)
        first = number & (CHUNK_WORDS - 1)
        n = min(CHUNK_WORDS - first, hashes.shape[0] - done)
        at, begin = U64(chunk * CHUNK_WORDS + first), U64(done)
        for k in range(U64(n)):
            chunks[at + k] = hashes[begin + k]
        number += n
        done += n


@compiled()
def put_hashes(h, hashes):
    """Store a chain of hashes only; return the first chunk."""
    first = _take_chunk(h, i32_view(h, NEXT_CHUNK))
    _append_hashes(h, first, I64(0), hashes)
    h[CHUNKS_TAKEN] += chunks_for(hashes.shape[0])
    return first


@compiled()
def put_chain(h, name, hashes):
    """Store a chain of a name and hashes; return the first chunk.  Enough chunks must be free."""
    chunks, after = u64_view(h, CHUNKS), i32_view(h, NEXT_CHUNK)
    n_name = words_for(len(name))
    first = chunk = _take_chunk(h, after)
    for number in range(n_name):
        chunk = _chunk_for(h, after, chunk, number)
        word = read_name_word(name, number)
        chunks[U64(chunk * CHUNK_WORDS + (number & (CHUNK_WORDS - 1)))] = word
    _append_hashes(h, chunk, n_name, hashes)
    h[CHUNKS_TAKEN] += chunks_for(n_name + hashes.shape[0])
    return first


@compiled()
def free_chain(h, first, words):
    """Release the chunks of a chain of `words` words."""
    after = i32_view(h, NEXT_CHUNK)
    last = first
    while after[last] != 0:
        last = I64(after[last])
    after[last] = I32(h[FREE_CHUNK])
    h[FREE_CHUNK] = first
    h[CHUNKS_TAKEN] -= chunks_for(words)


@compiled()
def copy_words(h, chunk, first, out):
    """Copy words of a chain to `out`, from the word `first` on."""
    chunks, after = u64_view(h, CHUNKS), i32_view(h, NEXT_CHUNK)
    for _ in range(first // CHUNK_WORDS):
        chunk = I64(after[chunk])
    first, done = first & (CHUNK_WORDS - 1), I64(0)
    while done < out.shape[0]:
        n = min(CHUNK_WORDS - first, out.shape[0] - done)
        at, begin = U64(chunk * CHUNK_WORDS + first), U64(done)
        for k in range(U64(n)):
            out[begin + k] = chunks[at + k]
        done += n
        first = I64(0)
        if done < out.shape[0]:
            chunk = I64(after[U64(chunk)])


@compiled()
def read_seed(h):
    return U64(h[SEED])
