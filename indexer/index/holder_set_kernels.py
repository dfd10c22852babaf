"""Interned holder sets: the slots that hold a block per tier, a set being shared by many nodes.

A set is a number of bitmaps over slots, called planes. Plane t has the bit of each slot that holds
the block in tier t; plane 4 + t marks the *irregular* slots among these: the block is held other
than exactly once under the node's primary engine hash, with overflow records for the details
(record_kernels). Lanes are further tiers with two planes each behind these (`held_plane`,
`irregular_plane`). Equal sets are the same set: a fleet of eight workers needs a few hundred sets
for a million blocks. Nodes count references; a memo caches the results of changing a slot of a set.

The table of sets has each content once. Clearing removes a slot from the sets in place, which may
make a set empty or equal to another set; such a set is *unlisted*: absent from the table, so that
no further node gets the set, until all nodes have left it (clear_kernels).

The hash of a set is a sum over the non-zero words, so that a changed word updates the hash at once
and the width of the pool does not matter.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.index.hash_table_kernels import find_value, table_functions
from indexer.index.header_kernels import (
    BITS,
    BYTES_LEFT,
    ENTRIES,
    MEMO,
    MOVED,
    ROOM,
    SCRATCH,
    SCRATCH_HASH,
    SET_BYTES,
    SET_FIELDS,
    SET_FREE_HEAD,
    SET_GENERATION,
    SET_HASH,
    SET_INFO,
    SET_LINK,
    SET_REFS,
    SET_TABLE,
    SET_WORDS,
    SETS_LIVE,
    SETS_UNLISTED,
    SETS_USED,
    WIDE_BITS,
    WIDE_MOVED,
    WIDE_SET_WORDS,
    WIDE_WORDS,
    WORDS,
    I,
    U,
    held_plane,
    i64_view,
    irregular_plane,
    mix_bits,
    mix_secretly,
    u32_view,
    u64_view,
)
from indexer.index.snapshot_kernels import copy_set_on_write
from indexer.jit.decorators import compiled

# States of a slot per tier; SLOT_GONE removes the slot from every plane.
ABSENT, REGULAR, IRREGULAR, SLOT_GONE = range(4)

# Values of SET_LINK for a live set; a free id links to the next free id.
LISTED, UNLISTED = 0, -1


@compiled()
def holder_state(h, set_id, slot, tier):
    """Return ABSENT, REGULAR or IRREGULAR."""
    words = h[WORDS]
    bits = u64_view(h, BITS)
    row = set_id * h[SET_WORDS] + (slot >> 6)
    bit = U(1) << U(slot & 63)
    if bits[row + held_plane(tier) * words] & bit == U(0):
        return ABSENT
    if bits[row + irregular_plane(tier) * words] & bit == U(0):
        return REGULAR
    return IRREGULAR


@compiled()
def has_set_room(h, kept):
    """Return whether `kept` ids remain after the two sets that a change of a block may add."""
    if h[SET_TABLE + ENTRIES] + 2 > h[SET_TABLE + ROOM]:
        return False
    # The cheap test first: unused ids only matter once memory is short.
    if h[BYTES_LEFT] >= (kept + 2) * h[SET_BYTES]:
        return True
    unused = h[SETS_USED] - 1 - h[SETS_LIVE]
    return unused + max(h[BYTES_LEFT], 0) // h[SET_BYTES] >= kept + 2


# Hash and table of the sets.


@compiled()
def word_hash(h, plane, k, word):
    """Return the contribution of word k of a plane to the hash of a set."""
    if word == U(0):
        return U(0)
    return mix_secretly(h, word ^ mix_secretly(h, plane << 32 | (k + 1)))


@compiled()
def _hash_home(hashed, mask):
    return I(U(hashed) >> U(20)) & mask


@compiled()
def set_home(h, column, i, mask):
    """Return the preferred table slot of the set in table slot i."""
    set_id = I(u32_view(h, column)[i])
    return _hash_home(i64_view(h, SET_INFO)[set_id * SET_FIELDS + SET_HASH], mask)


_put_next_set, _, _erase_set, move_sets = table_functions(SET_TABLE, 1, 1, set_home)


@compiled()
def find_equal(h, content, start, hashed):
    """Return (set in the table with this content or 0, table slot where the search ended).

    content: uint64, the set's words begin at `start`
    """
    length = h[SET_WORDS]
    bits = u64_view(h, BITS)
    info = i64_view(h, SET_INFO)
    table = u32_view(h, SET_TABLE)
    mask = I(table.shape[0] - 1)
    i = _hash_home(hashed, mask)
    while table[i] != 0:
        found = I(table[i])
        # Equal hashes are compared word by word: a collision must not merge two sets.
        if info[found * SET_FIELDS + SET_HASH] == hashed:
            k = 0
            while k < length and bits[found * length + k] == content[start + k]:
                k += 1
            if k == length:
                return found, i
        i = (i + 1) & mask
    return I(0), i


@compiled()
def list_set(h, set_id, i):
    """Enter a set into the free table slot i, where the search for the set ended."""
    info = i64_view(h, SET_INFO)
    table = u32_view(h, SET_TABLE)
    table[i] = set_id
    info[set_id * SET_FIELDS + SET_LINK] = LISTED
    h[SET_TABLE + ENTRIES] += 1
    if set_home(h, SET_TABLE, i, I(table.shape[0] - 1)) < h[SET_TABLE + MOVED]:
        _put_next_set(h, i)


@compiled()
def unlist_set(h, set_id):
    """Take a set out of the table, if listed."""
    info = i64_view(h, SET_INFO)
    if info[set_id * SET_FIELDS + SET_LINK] == UNLISTED:
        return
    table = u32_view(h, SET_TABLE)
    home = _hash_home(info[set_id * SET_FIELDS + SET_HASH], I(table.shape[0] - 1))
    _erase_set(h, find_value(h, SET_TABLE, home, set_id))
    info[set_id * SET_FIELDS + SET_LINK] = UNLISTED
    h[SET_TABLE + ENTRIES] -= 1


# Changes of sets, always by copy: other nodes share the old set.


@compiled()
def _change_scratch(h, set_id, slot, tier, state):
    """Set SCRATCH to the changed set, SCRATCH_HASH to the hash; return whether any slot is left."""
    words = h[WORDS]
    length = h[SET_WORDS]
    bits = u64_view(h, BITS)
    scratch = u64_view(h, SCRATCH)
    for k in range(length):
        scratch[k] = bits[set_id * length + k]
    hashed = U(i64_view(h, SET_INFO)[set_id * SET_FIELDS + SET_HASH])
    word = slot >> 6
    bit = U(1) << U(slot & 63)
    held, irregular = held_plane(tier), irregular_plane(tier)
    for plane in range(length // words):
        old = scratch[plane * words + word]
        new = old
        if state == SLOT_GONE or plane in (held, irregular):
            new &= ~bit
        if plane == held and state in (REGULAR, IRREGULAR):
            new |= bit
        if plane == irregular and state == IRREGULAR:
            new |= bit
        if new != old:
            hashed += word_hash(h, plane, word, new) - word_hash(h, plane, word, old)
            scratch[plane * words + word] = new
    h[SCRATCH_HASH] = I(hashed)
    # A slot is irregular only where it holds the block, so any bit of any plane is a holder.
    left = U(0)
    for k in range(length):
        left |= scratch[k]
    return left != U(0)


@compiled()
def _add_set(h, i):
    """Store SCRATCH under an id and enter the id at table slot i. References start at 0."""
    length = h[SET_WORDS]
    bits = u64_view(h, BITS)
    scratch = u64_view(h, SCRATCH)
    info = i64_view(h, SET_INFO)
    new = h[SET_FREE_HEAD]
    if new != 0:
        h[SET_FREE_HEAD] = info[new * SET_FIELDS + SET_LINK]
        copy_set_on_write(h, new)
    else:
        # Only fresh ids take memory: the bytes of a reused id were counted at the first use.
        new = h[SETS_USED]
        h[SETS_USED] += 1
        h[BYTES_LEFT] -= h[SET_BYTES]
    for k in range(length):
        bits[new * length + k] = scratch[k]
    if new < h[WIDE_MOVED]:
        widen_set(h, new)
    info[new * SET_FIELDS + SET_REFS] = 0
    info[new * SET_FIELDS + SET_HASH] = h[SCRATCH_HASH]
    h[SETS_LIVE] += 1
    list_set(h, new, i)
    return new


@compiled()
def widen_set(h, set_id):
    """Copy a set's row to the pool for more slots or more lanes."""
    words = h[WORDS]
    bits = u64_view(h, BITS)
    wide = u64_view(h, WIDE_BITS)
    row, wide_row = set_id * h[SET_WORDS], set_id * h[WIDE_SET_WORDS]
    for plane in range(h[SET_WORDS] // words):
        for k in range(words):
            wide[wide_row + plane * h[WIDE_WORDS] + k] = bits[row + plane * words + k]


@compiled()
def set_with_change(h, set_id, slot, tier, state):
    """Return the id of the set with `slot` in the given state in `tier` (all tiers for SLOT_GONE).

    The caller maintains references; an unreferenced set can be found again through the table, and
    `release_set` frees it. Requires `has_set_room`.
    """
    memo = i64_view(h, MEMO)
    info = i64_view(h, SET_INFO)
    key = (set_id << 26 | slot << 6 | tier << 2 | state) + 1
    entry = (I(mix_bits(U(key)) >> U(24)) & I(memo.shape[0] // 4 - 1)) * 4
    target = memo[entry + 1]
    # Generations of both sets: an id may have been freed and reused since the memo was written.
    if (
        memo[entry] == key
        and memo[entry + 2] == info[target * SET_FIELDS + SET_GENERATION]
        and memo[entry + 3] == info[set_id * SET_FIELDS + SET_GENERATION]
    ):
        return target
    target = I(0)
    if _change_scratch(h, set_id, slot, tier, state):
        target, i = find_equal(h, u64_view(h, SCRATCH), 0, h[SCRATCH_HASH])
        if target == 0:
            target = _add_set(h, i)
    memo[entry] = key
    memo[entry + 1] = target
    memo[entry + 2] = info[target * SET_FIELDS + SET_GENERATION]
    memo[entry + 3] = info[set_id * SET_FIELDS + SET_GENERATION]
    return target


@compiled()
def release_set(h, set_id):
    """Forget a set without references: remove the table entry and free the id."""
    info = i64_view(h, SET_INFO)
    if info[set_id * SET_FIELDS + SET_LINK] == UNLISTED:
        h[SETS_UNLISTED] -= 1
    unlist_set(h, set_id)
    info[set_id * SET_FIELDS + SET_GENERATION] += 1
    info[set_id * SET_FIELDS + SET_LINK] = h[SET_FREE_HEAD]
    h[SET_FREE_HEAD] = set_id
    h[SETS_LIVE] -= 1


@compiled()
def move_reference(h, old, new):
    """Move a node's reference from set `old` to set `new`; forget `old` without references."""
    info = i64_view(h, SET_INFO)
    if new != 0:
        info[new * SET_FIELDS + SET_REFS] += 1
    if old == 0:
        return
    info[old * SET_FIELDS + SET_REFS] -= 1
    if info[old * SET_FIELDS + SET_REFS] == 0:
        release_set(h, old)
