"""bytes of one ZMQ message -> Batch of KV events: the only door to decoding.

There are two readers with one meaning.  `kernels.scan_batch` reads the common payloads in one
compiled call into flat arrays, of which the events here are views: no hash and no token ever
becomes a Python object.  Whatever it gives up on goes to `parser`, which reads everything.
"""

from collections.abc import Generator, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.events import kernels
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
from indexer.events.parser import (
    EVENTS_AT_ONCE,
    EVENTS_PER_BATCH_MAX,
    parse_batch,
    parsing_batch,
)
from indexer.events.repeat_kernels import NAMES_AT_ONCE, may_repeat, spread
from indexer.hashing.hashes import Hashes, Tokens
from indexer.hashing.seeds import U64_MASK
from indexer.pages import scratch

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
    "decoding",
    "local_hashes",
]

PAYLOAD_BYTES_MAX = 16 * 2**20
SCANNED_AT_ONCE = 1 << 17
"""Hashes and tokens that are read in one step of a large payload."""
EVENT_BYTES_MIN = 9  # ["Ignored"]

_UNREADABLE = {
    TRUNCATED: "the payload ends inside an object",
    RESERVED_BYTE: "the payload holds the byte C1, which msgpack never uses",
    TOO_DEEP: f"the payload is nested deeper than {NESTING_MAX}",
}


def decode(payload: bytes) -> Batch:
    """Read one batch; bytes after it are ignored, an unreadable event is counted and left out.

    The arrays of the events may be views of one array per batch, so an event that is kept keeps all
    of the batch's hashes and tokens.  Raises DecodeError when the payload is longer than
    PAYLOAD_BYTES_MAX, is not msgpack, or is not a batch.
    """
    _check_length(payload)
    batch = scan(payload)
    return parse(payload) if batch is None else batch


def decoding(payload: bytes) -> Generator[int, None, Batch]:
    """As decode, in steps: yields what each has cost, in blocks or so.

    What is one step all the same is any single event that is not common.
    """
    _check_length(payload)
    scanned = yield from _scanning(payload, SCANNED_AT_ONCE)
    yield EVENTS_AT_ONCE * EVENT_COST
    if scanned is None:
        return (yield from parsing_batch(_whole_object(payload)))
    events: list[Event] = []
    for start in range(0, len(scanned.rows), EVENTS_AT_ONCE):
        rows = scanned.rows[start : start + EVENTS_AT_ONCE]
        events += scanned.events(payload, rows)
        yield len(rows) * EVENT_COST
    return Batch(scanned.rank, events)


def parse(payload: bytes) -> Batch:
    """As decode, for any payload, however unusual."""
    return parse_batch(_whole_object(payload))


def scan(payload: bytes) -> Batch | None:
    """As parse, but None for a payload that is not common or not right."""
    scanned = _end_of(_scanning(payload, kernels.NO_BUDGET))
    return scanned and Batch(scanned.rank, scanned.events(payload, scanned.rows))


class _Scanned(NamedTuple):
    """What the compiled reader has found; rows: int64 [events, N_COLUMNS]."""

    rank: int | None
    rows: NDArray[np.int64]
    hashes: Hashes
    tokens: Tokens

    def unchecked_names(self) -> Iterator[Hashes]:
        """Of stored events that have so many that the reader has not compared them."""
        counts = self.rows[:, kernels.HASH_END] - self.rows[:, kernels.HASH_START]
        for row in self.rows[counts > NAMES_AT_ONCE]:
            if row[kernels.TAG] == kernels.STORED:
                yield self.hashes[row[kernels.HASH_START] : row[kernels.HASH_END]]

    def events(self, payload: bytes, rows: NDArray[np.int64]) -> list[Event]:
        """Those of some of the rows."""
        return [_event(payload, row, self.hashes, self.tokens) for row in rows.tolist()]


def _check_length(payload: bytes) -> None:
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise DecodeError(f"{len(payload)} bytes, at most {PAYLOAD_BYTES_MAX} expected")


def _whole_object(payload: bytes) -> bytes:
    end = object_end(np.frombuffer(payload, np.uint8), 0)
    if end < 0:
        raise DecodeError(_UNREADABLE[end])
    return payload[:end]


def _scanning(payload: bytes, at_once: int) -> Generator[int, None, _Scanned | None]:
    """In steps, after each of which there is more; at_once: hashes and tokens of one."""
    size, bytes_ = len(payload), np.frombuffer(payload, np.uint8)
    rows_max = min(size // EVENT_BYTES_MIN + 1, EVENTS_PER_BATCH_MAX)
    rows = np.empty((rows_max, kernels.N_COLUMNS), np.int64)
    hashes: Hashes = scratch(size, np.uint64)
    tokens: Tokens = scratch(size, np.uint32)
    job = np.zeros(kernels.JOB_LENGTH, np.int64)
    while True:
        job[kernels.BUDGET] = at_once
        used, rank = kernels.scan_batch(bytes_, job, rows, hashes, tokens)
        if used == UNUSUAL:
            return None
        if used != kernels.STOPPED:
            break
        yield EVENTS_AT_ONCE * EVENT_COST
    scanned = _Scanned(None if rank == NONE else rank, rows[:used], hashes, tokens)
    for names in scanned.unchecked_names():
        if (yield from _repeats(names)):
            return None
    return scanned


def _repeats(names: Hashes) -> Generator[int, None, bool]:
    """Is a name there twice, or were they chosen so that this is hard to say?  In steps."""
    n_parts = 2
    while n_parts * NAMES_AT_ONCE < len(names):
        n_parts *= 2
    used = np.zeros(n_parts, np.int64)
    room = 2 * len(names) // n_parts
    parts = scratch(n_parts * room, np.uint64).reshape(n_parts, room)
    for begin in range(0, len(names), NAMES_AT_ONCE):
        if not spread(names[begin : begin + NAMES_AT_ONCE], used, parts):
            return True
        yield EVENTS_AT_ONCE * EVENT_COST
    for part, n_names in enumerate(used.tolist()):
        if may_repeat(parts[part, :n_names]):
            return True
        yield EVENTS_AT_ONCE * EVENT_COST
    return False


def _end_of(scanning: Generator[int, None, _Scanned | None]) -> _Scanned | None:
    """After all of its steps."""
    while True:
        try:
            next(scanning)
        except StopIteration as end:
            scanned: _Scanned | None = end.value
            return scanned


def _event(payload: bytes, row: list[int], hashes: Hashes, tokens: Tokens) -> Event:
    """The event that the columns of `row` describe."""
    tag, hash_start, hash_end, token_start, token_end, is_bigram, has_parent, parent = row[:8]
    block_size, group_idx, medium, medium_len, lora, lora_len, kind, kind_len = row[8:]
    if tag == kernels.CLEARED:
        return AllBlocksCleared()
    if tag == kernels.REMOVED:
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
        None,  # a salt
        None,  # and multimodal hashes are never common
        None if group_idx == NONE else group_idx,
        None if kind_len == NONE else payload[kind : kind + kind_len].decode(),
        is_bigram == 1,
    )
