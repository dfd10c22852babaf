"""Who is let in, as far as that is known already: by the key and the host of an earlier request.

What is not known here is given up, and the ordinary path judges it.  Nothing is judged here that it
has not judged before, for the very same bytes.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled
from indexer.index.state_kernels import i64_view, mask_view, u8_view
from select_service.core.load.ledger_kernels import UNKNOWN, find
from select_service.core.load.ledger_layout import FIELDS, ROWS, SUM
from select_service.fast.byte_kernels import NONE, I, U
from select_service.fast.request_layout import AUTHORIZATION, HOST_NAME
from select_service.fast.serve_layout import (
    ASKS_HOST,
    ASKS_KEY,
    GIVE_UP,
    HOST_BYTES,
    HOST_LENGTHS,
    HOSTS,
    HOSTS_MAX,
    KEY,
    STALE_SUMS,
    SUM_CHANGES,
    SUMS_SEEN,
    WITHIN,
)


@compiled()
def _is_same(known, begin, data, at, length):
    """In the same time wherever they differ."""
    other = U(0)
    for k in range(length):
        other |= U(known[U(begin + k)]) ^ U(data[U(at + k)])
    return other == U(0)


@compiled()
def _has_key(data, state):
    if state[AUTHORIZATION] == NONE:
        return False
    key, length = u8_view(state, KEY), state[AUTHORIZATION + 1]
    return length == key.shape[0] and _is_same(key, I(0), data, state[AUTHORIZATION], length)


@compiled()
def _has_host(data, state):
    hosts, lengths = u8_view(state, HOSTS), i64_view(state, HOST_LENGTHS)
    for k in range(HOSTS_MAX):
        length = lengths[k]
        if length == state[HOST_NAME + 1] and _is_same(
            hosts, I(k * HOST_BYTES), data, state[HOST_NAME], length
        ):
            return True
    return False


@compiled()
def is_let_in(data, state):
    """May the request whose head was read be served here?"""
    if state[ASKS_KEY] != 0 and not _has_key(data, state):
        return False
    return state[ASKS_HOST] == 0 or _has_host(data, state)


@compiled()
def kept_within(state, ledger, name):
    """0 when the reservation of this name is of a tenant of the key, or none; or why it is not."""
    if i64_view(state, SUM_CHANGES)[0] != state[SUMS_SEEN]:
        return STALE_SUMS
    row = find(ledger, name)
    if row == UNKNOWN:
        return 0
    return 0 if mask_view(state, WITHIN)[i64_view(ledger, ROWS)[row * FIELDS + SUM]] else GIVE_UP
