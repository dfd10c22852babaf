"""Ends of the elements of a long msgpack array, for decoding in parts."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.events.msgpack_kernels import BYTES, object_end
from indexer.jit.decorators import compiled


@compiled(f"int64({BYTES}, int64, int64)")
def objects_end(buf, at, count):
    """Return the index behind `count` objects from `at` on; all must be well formed."""
    for _ in range(count):
        at = object_end(buf, at)
    return at
