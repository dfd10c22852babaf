"""Access checks by comparison with an earlier request's key and host.

Only credentials that the ordinary path has accepted before, byte for byte, are accepted here;
all others go to the ordinary path.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.index.header_kernels import i64_view, mask_view, u8_view
from indexer.jit.decorators import compiled
from select_service.core.load.compiled.ledger_kernels import NOT_FOUND, find_reservation
from select_service.core.load.compiled.ledger_layout import FIELDS, ROWS, SUM
from select_service.fastpath.parsing.byte_kernels import NONE, I, U
from select_service.fastpath.parsing.request_layout import AUTHORIZATION, HOST_NAME
from select_service.fastpath.serve_layout import (
    CHECKS_HOST,
    DECLINED,
    HOST_BYTES,
    HOST_LENGTHS,
    HOSTS,
    HOSTS_MAX,
    KEY,
    NEEDS_KEY,
    STALE_SUMS,
    SUM_CHANGES,
    SUMS_SEEN,
    WITHIN,
)


@compiled()
def _equal_constant_time(key_bytes, begin, data, at, length):
    """Compare in constant time."""
    other = U(0)
    for k in range(length):
        # No early exit: the time must not depend on the first differing byte.
        other |= U(key_bytes[U(begin + k)]) ^ U(data[U(at + k)])
    return other == U(0)


@compiled()
def _has_key(data, state):
    if state[AUTHORIZATION] == NONE:
        return False
    key, length = u8_view(state, KEY), state[AUTHORIZATION + 1]
    return length == key.shape[0] and _equal_constant_time(
        key, I(0), data, state[AUTHORIZATION], length
    )


@compiled()
def _has_host(data, state):
    hosts, lengths = u8_view(state, HOSTS), i64_view(state, HOST_LENGTHS)
    for k in range(HOSTS_MAX):
        length = lengths[k]
        if length == state[HOST_NAME + 1] and _equal_constant_time(
            hosts, I(k * HOST_BYTES), data, state[HOST_NAME], length
        ):
            return True
    return False


@compiled()
def is_authorized(data, state):
    """Return whether key and host of the parsed head are accepted here."""
    if state[NEEDS_KEY] != 0 and not _has_key(data, state):
        return False
    return state[CHECKS_HOST] == 0 or _has_host(data, state)


@compiled()
def check_tenant(state, ledger, name):
    """Return 0 if the reservation belongs to a tenant of the key or does not exist, or why not."""
    if i64_view(state, SUM_CHANGES)[0] != state[SUMS_SEEN]:
        return STALE_SUMS
    row = find_reservation(ledger, name)
    if row == NOT_FOUND:
        return 0
    return 0 if mask_view(state, WITHIN)[i64_view(ledger, ROWS)[row * FIELDS + SUM]] else DECLINED
