"""The reader of requests, head and body, as a separate compiled entry."""

# mypy: ignore-errors
# The decorator erases the signature, so type checks here would prove nothing.

from indexer.jit.decorators import compiled
from select_service.fastpath.parsing.body_kernels import read_body
from select_service.fastpath.parsing.head_kernels import read_head
from select_service.fastpath.parsing.request_layout import BODY_AT, COMMON, END, INCOMPLETE

BYTES = "Bytes(uint8, 1, 'C', readonly=True)"
"""Type of bytes from a socket in signatures.

No array is made of the bytes, which would take longer than reading a short request.
"""


@compiled(f"int64({BYTES}, int64, int64, int64[::1], uint64[::1], uint64[::1], uint32[::1])")
def read_request(data, at, end, fields, blocks, sequence, tokens):
    """Read the request that begins at `at`: COMMON, INCOMPLETE or UNUSUAL.

    The arguments are those of `read_head` and `read_body`. When more bytes are needed, fields[END]
    is the end of the request, or NONE while the head does not contain the length.
    """
    state = read_head(data, at, end, fields)
    if state != COMMON:
        return state
    if fields[END] > end:
        return INCOMPLETE
    lists = (blocks, sequence, tokens)
    return read_body(data, fields[BODY_AT], fields[END], fields, lists)
