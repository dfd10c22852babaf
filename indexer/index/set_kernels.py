"""Interned holder sets: which slots hold a block in which tier, one set shared by many nodes.

A set is PLANES bitmaps over slots. Plane t has the bit of each slot that holds the block in tier
t; plane 4 + t marks those among them that hold it *irregularly*, that is other than exactly once
under the node's primary engine hash; overflow records then say how (record_kernels). Equal sets
are one set: a fleet of eight workers needs a few hundred of them for a million blocks. Nodes
count references; the sets reached from a set by one change are remembered in a memo.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled
from indexer.index.state_kernels import (
    BITS,
    MEMO,
    N_TIERS,
    PLANES,
    SCRATCH,
    SET_FIELDS,
    SET_FREE_HEAD,
    SET_GENERATION,
    SET_INFO,
    SET_NEXT,
    SET_REFS,
    SET_TABLE,
    SETS_LIVE,
    SETS_ROOM,
    SETS_USED,
    WORDS,
    I,
    U,
    i32_view,
    i64_view,
    mix,
    u64_view,
)

# How a slot holds a block in a tier; SLOT_GONE takes the slot out of every plane.
ABSENT, REGULAR, IRREGULAR, SLOT_GONE = range(4)


@compiled()
def holder_state(h, set_id, slot, tier):
    """ABSENT, REGULAR or IRREGULAR."""
    words = h[WORDS]
    bits = u64_view(h, BITS)
    word = set_id * PLANES * words + tier * words + (slot >> 6)
    bit = U(1) << U(slot & 63)
    if bits[word] & bit == U(0):
        return ABSENT
    if bits[word + N_TIERS * words] & bit == U(0):
        return REGULAR
    return IRREGULAR


@compiled()
def has_set_room(h):
    """Whether the two sets that one change of a block may add surely find a place."""
    return h[SETS_LIVE] + 2 <= h[SETS_ROOM]


@compiled()
def _content_hash(bits, start, length):
    x = U(0)
    for k in range(length):
        x = mix(x ^ bits[start + k]) + U(0x632BE59BD9B4E019)
    return x


@compiled()
def _table_home(bits, start, length, mask):
    return I(_content_hash(bits, start, length) >> U(20)) & mask


@compiled()
def _change_scratch(h, set_id, slot, tier, state):
    """SCRATCH = the set with one slot changed. Returns whether any slot is left."""
    words = h[WORDS]
    length = PLANES * words
    bits = u64_view(h, BITS)
    scratch = u64_view(h, SCRATCH)
    for k in range(length):
        scratch[k] = bits[set_id * length + k]
    word = slot >> 6
    bit = U(1) << U(slot & 63)
    for plane in range(PLANES):
        if state == SLOT_GONE or plane & 3 == tier:
            scratch[plane * words + word] &= ~bit
    if state != ABSENT and state != SLOT_GONE:
        scratch[tier * words + word] |= bit
    if state == IRREGULAR:
        scratch[(N_TIERS + tier) * words + word] |= bit
    left = U(0)
    for k in range(N_TIERS * words):
        left |= scratch[k]
    return left != U(0)


@compiled()
def _add_set(h, table_slot):
    """Give SCRATCH an id and enter it at the table slot. References start at 0."""
    length = PLANES * h[WORDS]
    bits = u64_view(h, BITS)
    scratch = u64_view(h, SCRATCH)
    info = i64_view(h, SET_INFO)
    table = i32_view(h, SET_TABLE)
    new = h[SET_FREE_HEAD]
    if new != 0:
        h[SET_FREE_HEAD] = info[new * SET_FIELDS + SET_NEXT]
    else:
        new = h[SETS_USED]
        h[SETS_USED] += 1
    for k in range(length):
        bits[new * length + k] = scratch[k]
    info[new * SET_FIELDS + SET_REFS] = 0
    h[SETS_LIVE] += 1
    table[table_slot] = new
    return new


@compiled()
def _intern_scratch(h):
    """Id of the set equal to SCRATCH, which is not empty."""
    length = PLANES * h[WORDS]
    bits = u64_view(h, BITS)
    scratch = u64_view(h, SCRATCH)
    table = i32_view(h, SET_TABLE)
    mask = I(table.shape[0] - 1)
    i = _table_home(scratch, 0, length, mask)
    while table[i] != 0:
        found = I(table[i])
        same = True
        for k in range(length):
            if bits[found * length + k] != scratch[k]:
                same = False
                break
        if same:
            return found
        i = (i + 1) & mask
    return _add_set(h, i)


@compiled()
def changed_set(h, set_id, slot, tier, state):
    """Id of the set with `slot` in the given state in `tier` (all tiers for SLOT_GONE).

    References are the caller's business; a set nobody refers to may be reached again through the
    table, and is given back by `release_set`. Requires `has_set_room`.
    """
    memo = i64_view(h, MEMO)
    info = i64_view(h, SET_INFO)
    key = (set_id << 24 | slot << 4 | tier << 2 | state) + 1
    entry = (I(mix(U(key)) >> U(24)) & I(memo.shape[0] // 4 - 1)) * 4
    target = memo[entry + 1]
    if (
        memo[entry] == key
        and memo[entry + 2] == info[target * SET_FIELDS + SET_GENERATION]
        and memo[entry + 3] == info[set_id * SET_FIELDS + SET_GENERATION]
    ):
        return target
    target = I(0)
    if _change_scratch(h, set_id, slot, tier, state):
        target = _intern_scratch(h)
    memo[entry] = key
    memo[entry + 1] = target
    memo[entry + 2] = info[target * SET_FIELDS + SET_GENERATION]
    memo[entry + 3] = info[set_id * SET_FIELDS + SET_GENERATION]
    return target


@compiled()
def release_set(h, set_id):
    """Forget a set without references: out of the table, its id free for reuse."""
    length = PLANES * h[WORDS]
    bits = u64_view(h, BITS)
    info = i64_view(h, SET_INFO)
    table = i32_view(h, SET_TABLE)
    mask = I(table.shape[0] - 1)
    i = _table_home(bits, set_id * length, length, mask)
    while table[i] != set_id:
        i = (i + 1) & mask
    j = i
    while True:
        j = (j + 1) & mask
        other = I(table[j])
        if other == 0:
            break
        k = _table_home(bits, other * length, length, mask)
        if (j - k) & mask >= (j - i) & mask:
            table[i] = other
            i = j
    table[i] = 0
    info[set_id * SET_FIELDS + SET_GENERATION] += 1
    info[set_id * SET_FIELDS + SET_NEXT] = h[SET_FREE_HEAD]
    h[SET_FREE_HEAD] = set_id
    h[SETS_LIVE] -= 1


@compiled()
def move_reference(h, old, new):
    """One node changes from set `old` to set `new`. Returns whether `old` was forgotten."""
    info = i64_view(h, SET_INFO)
    if new != 0:
        info[new * SET_FIELDS + SET_REFS] += 1
    if old == 0:
        return False
    info[old * SET_FIELDS + SET_REFS] -= 1
    if info[old * SET_FIELDS + SET_REFS] > 0:
        return False
    release_set(h, old)
    return True


@compiled()
def fill_set_table(h):
    """Enter every live set into an empty table, after the table or the pool was replaced."""
    length = PLANES * h[WORDS]
    bits = u64_view(h, BITS)
    info = i64_view(h, SET_INFO)
    table = i32_view(h, SET_TABLE)
    mask = I(table.shape[0] - 1)
    for set_id in range(1, h[SETS_USED]):
        if info[set_id * SET_FIELDS + SET_REFS] > 0:
            i = _table_home(bits, set_id * length, length, mask)
            while table[i] != 0:
                i = (i + 1) & mask
            table[i] = set_id
