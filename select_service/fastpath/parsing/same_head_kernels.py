"""Repeated heads: most clients send the same head again, except for its content-length.

The last accepted head is kept with its fields.  A head of the same bytes, with as many digits in
its content-length, gets these fields with its own length: a tenth of the work of parsing.
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.index.header_kernels import i64_view, u8_view
from indexer.jit.decorators import compiled
from indexer.jit.memory_kernels import word_at
from select_service.fastpath.parsing.byte_kernels import NONE, WINDOW, I, U
from select_service.fastpath.parsing.head_kernels import number_at
from select_service.fastpath.parsing.request_layout import (
    AUTHORIZATION,
    BODY_AT,
    BODY_BYTES_MAX,
    END,
    LENGTH_TEXT,
    N_FIELDS,
    PREFILL_COMPLETE,
    ROUTE,
    SAME_HEAD_BYTES_MAX,
)


@compiled()
def _differ(data, kept, begin, end):
    """Return 0 if the bytes of a request and of the kept head are equal in [begin, end)."""
    found, at = U(0), begin
    while at + 8 <= end:
        found |= word_at(data, at) ^ word_at(kept, at)
        at += 8
    while at < end:
        found |= U(data[U(at)] ^ kept[U(at)])
        at += 1
    return found


@compiled()
def read_same_head(data, end, state, kept_at, fields_at):
    """Fill the fields of a request at 0 if the head equals the kept head; return whether it does.

    kept_at, fields_at: pairs of the kept head and of its fields in `state`
    """
    fields = i64_view(state, fields_at)
    first, n_digits, length = fields[LENGTH_TEXT], fields[LENGTH_TEXT + 1], fields[BODY_AT]
    if length == NONE or end < length:
        return False
    kept, behind = u8_view(state, kept_at), first + n_digits
    if (_differ(data, kept, I(0), first) | _differ(data, kept, behind, length)) != 0:
        return False
    n_bytes = number_at(data, first, behind)
    if n_bytes < 1 or n_bytes > BODY_BYTES_MAX:
        return False
    for k in range(N_FIELDS):
        state[k] = fields[k]
    state[END] = length + n_bytes
    return True


@compiled()
def keep_head(data, state, kept_at, fields_at):
    """Keep the head at 0 that was just accepted, if it is short and without credentials."""
    length = state[BODY_AT]
    is_kept = state[ROUTE] < PREFILL_COMPLETE and WINDOW <= length <= SAME_HEAD_BYTES_MAX
    # Credentials of one client are not compared with those of another.
    if not is_kept or state[AUTHORIZATION] != NONE:
        return
    kept, fields = u8_view(state, kept_at), i64_view(state, fields_at)
    for k in range(length):
        kept[U(k)] = data[U(k)]
    for k in range(N_FIELDS):
        fields[k] = state[k]
