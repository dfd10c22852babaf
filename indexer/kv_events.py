"""bytes of one ZMQ message -> Batch of KV events.

The only door to decoding.
"""

import numpy as np

from indexer import event_kernels
from indexer.event_parser import EVENTS_PER_BATCH_MAX, parse_batch
from indexer.event_types import (
    AllBlocksCleared,
    Batch,
    BlockRemoved,
    BlockStored,
    DecodeError,
    Event,
    local_hashes,
)

__all__ = [
    "EVENTS_PER_BATCH_MAX",
    "PAYLOAD_BYTES_MAX",
    "AllBlocksCleared",
    "Batch",
    "BlockRemoved",
    "BlockStored",
    "DecodeError",
    "Event",
    "decode",
    "local_hashes",
]

PAYLOAD_BYTES_MAX = 16 * 2**20

_UNREADABLE = {
    event_kernels.TRUNCATED: "the payload ends inside an object",
    event_kernels.RESERVED_BYTE: "the payload holds the byte C1, which msgpack never uses",
    event_kernels.TOO_DEEP: f"the payload is nested deeper than {event_kernels.NESTING_MAX}",
}


def decode(payload: bytes) -> Batch:
    """Read one batch; bytes after it are ignored, an unreadable event is counted and left out.

    Raises DecodeError when the payload is longer than PAYLOAD_BYTES_MAX, is not msgpack, or is
    not a batch.
    """
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise DecodeError(f"{len(payload)} bytes, at most {PAYLOAD_BYTES_MAX} expected")
    end = event_kernels.object_end(np.frombuffer(payload, np.uint8), 0)
    if end < 0:
        raise DecodeError(_UNREADABLE[end])
    return parse_batch(payload[:end])
