"""Where the members of a long msgpack array end, for those who decode it in parts."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

from indexer.compiled import compiled
from indexer.events.msgpack_kernels import BYTES, object_end


@compiled(f"int64({BYTES}, int64, int64)")
def objects_end(buf, at, count):
    """Index after so many objects, the first of which begins at `at`; all are well-formed."""
    for _ in range(count):
        at = object_end(buf, at)
    return at
