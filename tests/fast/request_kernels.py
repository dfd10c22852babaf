"""The reader of requests, head and body, as an entry of its own."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled
from select_service.fast.body_kernels import read_body
from select_service.fast.head_kernels import read_head
from select_service.fast.request_layout import BODY_AT, END, INCOMPLETE, USUAL

BYTES = "Bytes(uint8, 1, 'C', readonly=True)"
"""In signatures: bytes as they come from a socket.  No array of them is made, which takes longer
than to read a short request."""


@compiled(f"int64({BYTES}, int64, int64, int64[::1], uint64[::1], uint64[::1], uint32[::1])")
def read_request(data, at, end, fields, blocks, sequence, tokens):
    """Read the request that begins at `at`: USUAL, INCOMPLETE or UNUSUAL.

    Arguments as those of `read_head` and `read_body`.  When more bytes are needed, fields[END] says
    up to where, or NONE when the head does not say it yet.
    """
    state = read_head(data, at, end, fields)
    if state != USUAL:
        return state
    if fields[END] > end:
        return INCOMPLETE
    return read_body(data, fields[BODY_AT], fields[END], fields, blocks, sequence, tokens)
