"""Decoder of a ZMQ message to a Batch of KV events; the only entry to decoding.

Two readers give the same result.  `payload_kernels.scan_batch` reads the common payloads in a
compiled call into flat arrays, and the events here are views of these arrays: hashes and tokens
never become Python objects.  All other payloads go to `payload_parser`, which reads everything.
"""

from collections.abc import Generator, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.events import payload_kernels, payload_layout
from indexer.events.duplicate_kernels import NAMES_AT_ONCE, may_have_duplicates, spread_names
from indexer.events.event_types import (
    EVENT_COST,
    AllBlocksCleared,
    Batch,
    BlockRemoved,
    BlockStored,
    DecodeError,
    Event,
    local_hashes,
)
from indexer.events.msgpack_kernels import (
    NESTING_MAX,
    NONE,
    RESERVED_BYTE,
    TOO_DEEP,
    TRUNCATED,
    UNUSUAL,
    object_end,
)
from indexer.events.payload_parser import (
    EVENTS_AT_ONCE,
    EVENTS_PER_BATCH_MAX,
    parse_batch,
    parse_batch_in_steps,
)
from indexer.hashing.block_hashing import Hashes, Tokens
from indexer.hashing.seeds import U64_MASK
from indexer.page_memory import scratch_array

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
    "decode_in_steps",
    "local_hashes",
]

PAYLOAD_BYTES_MAX = 16 * 2**20
SCANNED_AT_ONCE = 1 << 17
"""Limit of hashes and tokens read in a step of a large payload."""
EVENT_BYTES_MIN = 9  # ["Ignored"], the shortest event

_UNREADABLE = {
    TRUNCATED: "the payload ends inside an object",
    RESERVED_BYTE: "the payload holds the byte C1, which is invalid in msgpack",
    TOO_DEEP: f"the payload is nested deeper than {NESTING_MAX}",
}


def decode(payload: bytes) -> Batch:
    """Read a batch; further bytes are ignored, an unreadable event is counted and left out.

    The arrays of the events may be views of an array of the batch, so an event keeps the hashes and
    tokens of the whole batch in memory.  Raises DecodeError when the payload is longer than
    PAYLOAD_BYTES_MAX, is not msgpack, or is not a batch.
    """
    _check_length(payload)
    batch = scan_payload(payload)
    return parse_payload(payload) if batch is None else batch


def decode_in_steps(payload: bytes) -> Generator[int, None, Batch]:
    """Decode in steps; yield the cost of each step, roughly in blocks.

    An uncommon event is a single step, whatever the size.
    """
    _check_length(payload)
    scanned = yield from _scan_in_steps(payload, SCANNED_AT_ONCE)
    yield EVENTS_AT_ONCE * EVENT_COST
    if scanned is None:
        return (yield from parse_batch_in_steps(_whole_object(payload)))
    events: list[Event] = []
    for start in range(0, len(scanned.rows), EVENTS_AT_ONCE):
        rows = scanned.rows[start : start + EVENTS_AT_ONCE]
        events += scanned.events(payload, rows)
        yield len(rows) * EVENT_COST
    return Batch(scanned.rank, events)


def parse_payload(payload: bytes) -> Batch:
    """Decode any payload, however unusual, with the parser."""
    return parse_batch(_whole_object(payload))


def scan_payload(payload: bytes) -> Batch | None:
    """Decode with the compiled reader; None for a payload that is uncommon or malformed."""
    scanned = _run_all(_scan_in_steps(payload, payload_layout.NO_BUDGET))
    return scanned and Batch(scanned.rank, scanned.events(payload, scanned.rows))


class _ScanResult(NamedTuple):
    """Result of the compiled reader; rows: int64 [events, N_COLUMNS]."""

    rank: int | None
    rows: NDArray[np.int64]
    hashes: Hashes
    tokens: Tokens

    def unchecked_names(self) -> Iterator[Hashes]:
        """Yield the hashes of stored events with too many for the reader to compare."""
        counts = self.rows[:, payload_layout.HASH_END] - self.rows[:, payload_layout.HASH_START]
        for row in self.rows[counts > NAMES_AT_ONCE]:
            if row[payload_layout.TAG] == payload_layout.STORED:
                yield self.hashes[row[payload_layout.HASH_START] : row[payload_layout.HASH_END]]

    def events(self, payload: bytes, rows: NDArray[np.int64]) -> list[Event]:
        """Return the events of some of the rows."""
        return [_event_of_row(payload, row, self.hashes, self.tokens) for row in rows.tolist()]


def _check_length(payload: bytes) -> None:
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise DecodeError(f"{len(payload)} bytes, at most {PAYLOAD_BYTES_MAX} expected")


def _whole_object(payload: bytes) -> bytes:
    end = object_end(np.frombuffer(payload, np.uint8), 0)
    if end < 0:
        raise DecodeError(_UNREADABLE[end])
    return payload[:end]


def _scan_in_steps(payload: bytes, at_once: int) -> Generator[int, None, _ScanResult | None]:
    """Scan in steps of `at_once` hashes and tokens; yield between steps."""
    size, bytes_ = len(payload), np.frombuffer(payload, np.uint8)
    rows_max = min(size // EVENT_BYTES_MIN + 1, EVENTS_PER_BATCH_MAX)
    rows = np.empty((rows_max, payload_layout.N_COLUMNS), np.int64)
    # An element takes a byte at least, so the payload's size bounds both arrays; few pages are
    # touched.
    hashes: Hashes = scratch_array(size, np.uint64)
    tokens: Tokens = scratch_array(size, np.uint32)
    job = np.zeros(payload_layout.JOB_LENGTH, np.int64)
    while True:
        job[payload_layout.BUDGET] = at_once
        used, rank = payload_kernels.scan_batch(bytes_, job, rows, hashes, tokens)
        if used == UNUSUAL:
            return None
        if used != payload_layout.STOPPED:
            break
        yield EVENTS_AT_ONCE * EVENT_COST
    scanned = _ScanResult(None if rank == NONE else rank, rows[:used], hashes, tokens)
    for names in scanned.unchecked_names():
        if (yield from _has_duplicates(names)):
            return None
    return scanned


def _has_duplicates(names: Hashes) -> Generator[int, None, bool]:
    """Return, in steps, whether a hash may occur twice, or was chosen to make the check
    expensive.
    """
    n_parts = 2
    while n_parts * NAMES_AT_ONCE < len(names):
        n_parts *= 2
    used = np.zeros(n_parts, np.int64)
    room = 2 * len(names) // n_parts
    parts = scratch_array(n_parts * room, np.uint64).reshape(n_parts, room)
    for begin in range(0, len(names), NAMES_AT_ONCE):
        if not spread_names(names[begin : begin + NAMES_AT_ONCE], used, parts):
            return True
        yield EVENTS_AT_ONCE * EVENT_COST
    for part, n_names in enumerate(used.tolist()):
        if may_have_duplicates(parts[part, :n_names]):
            return True
        yield EVENTS_AT_ONCE * EVENT_COST
    return False


def _run_all(scanning: Generator[int, None, _ScanResult | None]) -> _ScanResult | None:
    """Run all steps of a scan; return the result."""
    while True:
        try:
            next(scanning)
        except StopIteration as end:
            scanned: _ScanResult | None = end.value
            return scanned


def _event_of_row(payload: bytes, row: list[int], hashes: Hashes, tokens: Tokens) -> Event:
    """Return the event in the columns of `row`."""
    tag, hash_start, hash_end, token_start, token_end, is_bigram, has_parent, parent = row[:8]
    block_size, group_idx, medium, medium_len, lora, lora_len, kind, kind_len, window = row[8:17]
    if tag == payload_layout.CLEARED:
        return AllBlocksCleared()
    if tag == payload_layout.REMOVED:
        return BlockRemoved(
            hashes[hash_start:hash_end],
            None if medium_len == NONE else payload[medium : medium + medium_len].decode(),
            None if group_idx == NONE else group_idx,
            None if kind_len == NONE else payload[kind : kind + kind_len].decode(),
        )
    return BlockStored(
        hashes[hash_start:hash_end],
        parent & U64_MASK if has_parent else None,
        tokens[token_start:token_end],
        block_size,
        None if medium_len == NONE else payload[medium : medium + medium_len].decode(),
        payload[lora : lora + lora_len].decode() if lora_len > 0 else None,
        None,  # salts
        None,  # and multimodal hashes are never common
        None if group_idx == NONE else group_idx,
        None if kind_len == NONE else payload[kind : kind + kind_len].decode(),
        is_bigram == 1,
        None if window == NONE else window,
        None,  # lookahead is never common, either
        row[payload_layout.HAS_KEY_FIELDS] == 1,
        row[payload_layout.IS_ARRAY] == 1,
    )
