"""Selections that a later booking may take over by their id, oldest first.

Not part of the ring of decisions, although both keep recent choices: the ring also has the choices
of all bookings and of requests without an id, which would push a selection out within a second of
traffic; it can be switched off; and its rows have the candidates, for explanations, but no hashes.

An entry is one run of bytes (`pending_selection_layout`), which the fast path writes as well: the
most compact form, whose length is its size, and the cheapest one to keep.
"""

from collections import OrderedDict
from struct import Struct, pack
from typing import NamedTuple

import msgspec
import numpy as np

from select_service.core.identity import PartitionKey, Rank
from select_service.core.placement import pending_selection_layout as layout
from select_service.core.placement.prompt import Prompt
from select_service.schemas.prompts import PromptFields
from select_service.schemas.selection import SelectRequest

DROPS_PER_STEP = 4096
"""Maximum number of entries removed in a step, some two milliseconds of work."""

_words = Struct("<5qQ5qd")
assert _words.size == layout.KEY_AT
_KEPT_FIELDS = ("lora_name",)
_UNUSED_FIELDS = {
    *("selection_id", "include_hashes", "expected_output_tokens"),
    *PromptFields.__struct_fields__,
}
_TERM_FIELDS = (
    *_KEPT_FIELDS,
    *(name for name in SelectRequest.__struct_fields__ if name not in _UNUSED_FIELDS),
)
_DEFAULTS = SelectRequest()


class SelectionCacheLimits(NamedTuple):
    """Limits of the pending selections of a process.

    ttl_s: seconds after which an entry expires; 0 means at once
    entries_max: maximum number of entries; 0 means that none is kept
    bytes_max: maximum size of all entries
    """

    ttl_s: float = 120.0
    entries_max: int = 4096
    bytes_max: int = 268_435_456


class PendingSelection(NamedTuple):
    """Choice of a rank, with all that booking the choice needs.

    request: request without its prompt and ids
    effective_prefill_tokens, own_work, cached_blocks: numbers of the placement
    selected_at: seconds, on the clock of the core
    """

    rank: Rank
    block_size: int
    prompt: Prompt
    request: SelectRequest
    effective_prefill_tokens: int
    own_work: int
    cached_blocks: int
    selected_at: float

    def encode(self, key: bytes) -> bytes:
        """Return the entry as a record.  key: result of `encode_key`"""
        expected = self.request.expected_output_tokens
        words = _words.pack(
            len(key),
            len(self.prompt.sequence_hashes),
            len(self.prompt.block_hashes),
            self.prompt.isl_tokens,
            self.block_size,
            *self.rank,
            self.effective_prefill_tokens,
            self.own_work,
            self.cached_blocks,
            layout.NO_VALUE if expected is None else expected,
            self.selected_at,
        )
        hashes = self.prompt.sequence_hashes.tobytes(), self.prompt.block_hashes.tobytes()
        return b"".join((words, key, *hashes, _encode_terms(self.request)))


def decode_record(record: bytes) -> PendingSelection:
    """Return the entry of a record."""
    key_bytes, n_sequence, n_blocks, isl_tokens, block_size, *others = _words.unpack_from(record)
    worker_id, dp_rank, effective, own_work, cached, expected, selected_at = others
    at = layout.KEY_AT + key_bytes
    hashes = np.frombuffer(record, np.uint64, n_sequence + n_blocks, at)
    terms = record[at + 8 * len(hashes) :]
    request = msgspec.json.decode(terms, type=SelectRequest) if terms else SelectRequest()
    request.expected_output_tokens = None if expected == layout.NO_VALUE else expected
    prompt = Prompt(hashes[n_sequence:], hashes[:n_sequence], isl_tokens)
    rank = Rank(worker_id, dp_rank)
    return PendingSelection(
        rank, block_size, prompt, request, effective, own_work, cached, selected_at
    )


def encode_key(scope: PartitionKey, selection_id: str) -> bytes:
    """Return the key of an id in its scope."""
    model, tenant, name = (text.encode("utf-8", "surrogatepass") for text in (*scope, selection_id))
    texts = model + tenant + name
    head = pack("<2q", len(model), len(model) + len(tenant))
    return head + texts + bytes(-len(texts) % 8)


def _encode_terms(request: SelectRequest) -> bytes:
    """Return the fields that a record has no words for, without those at their defaults."""
    terms = {
        name: value
        for name in _TERM_FIELDS
        if (value := getattr(request, name)) != getattr(_DEFAULTS, name)
    }
    return msgspec.json.encode(terms) if terms else b""


class PendingSelectionCounts(NamedTuple):
    """Numbers of the pending selections: entries and their bytes now, then totals by outcome."""

    entries: int
    n_bytes: int
    booked: int
    evicted: int
    oversized: int


class PendingSelections:
    """Pending selections by key, bounded in age, number and bytes.  The oldest goes first."""

    def __init__(self, limits: SelectionCacheLimits) -> None:
        self.ttl_s, self._entries_max, self._bytes_max = limits
        self.is_on = limits.entries_max > 0
        self.n_bytes = 0
        """Size of all records."""
        self.n_booked = 0
        """Number of selections that a booking took over."""
        self.n_oversized = 0
        """Number of selections larger than the limit of all entries, which were not kept."""
        self.n_evicted = 0
        """Number of entries removed to make room for newer entries."""
        self.records: OrderedDict[bytes, bytes] = OrderedDict()
        """Records by key, oldest first."""

    def __len__(self) -> int:
        return len(self.records)

    @property
    def counts(self) -> PendingSelectionCounts:
        totals = self.n_booked, self.n_evicted, self.n_oversized
        return PendingSelectionCounts(len(self), self.n_bytes, *totals)

    def put(self, record: bytes) -> None:
        """Keep a selection, in place of an earlier selection of this key.

        O(1), or up to DROPS_PER_STEP for a record as large as many others.
        """
        # KEY_BYTES is below 2 ** 16, and reading two bytes is quicker than unpacking a word.
        key = record[layout.KEY_AT : layout.KEY_AT + record[0] + (record[1] << 8)]
        records, size = self.records, len(record)
        if key in records:
            self.discard(key)
        if size > self._bytes_max:
            # Making room for the record would remove all others, and it would still not fit.
            self.n_oversized += 1
            return
        records[key] = record
        self.n_bytes += size
        if len(records) > self._entries_max:  # by one
            self.n_bytes -= len(records.popitem(last=False)[1])
            self.n_evicted += 1
        if self.n_bytes > self._bytes_max:
            self._evict_bytes()
            if self.n_bytes > self._bytes_max:
                self.discard(key)
                self.n_oversized += 1

    def find(self, key: bytes, now: float) -> PendingSelection | None:
        """Return the selection of a key; None means none, or expired."""
        record = self.records.get(key)
        return None if record is None or self._is_expired(record, now) else decode_record(record)

    def discard(self, key: bytes) -> None:
        """Remove a selection, if any."""
        record = self.records.pop(key, None)
        if record is not None:
            self.n_bytes -= len(record)

    def drop_expired(self, now: float) -> bool:
        """Remove expired entries, as the step of a periodic task; return whether more remain."""
        for _ in range(DROPS_PER_STEP):
            if not self._is_oldest_expired(now):
                return False
            self.n_bytes -= len(self.records.popitem(last=False)[1])
        return self._is_oldest_expired(now)

    def _evict_bytes(self) -> None:
        """Remove the oldest entries until the rest is within the limit of bytes, in one step."""
        records, n_bytes = self.records, self.n_bytes
        for _ in range(DROPS_PER_STEP):
            n_bytes -= len(records.popitem(last=False)[1])
            self.n_evicted += 1
            if n_bytes <= self._bytes_max:
                break
        self.n_bytes = n_bytes

    def _is_oldest_expired(self, now: float) -> bool:
        return bool(self.records) and self._is_expired(next(iter(self.records.values())), now)

    def _is_expired(self, record: bytes, now: float) -> bool:
        return now - _selected_at(record) >= self.ttl_s

    def check_invariants(self) -> None:
        """Check the invariants, for tests."""
        assert self.n_bytes == sum(map(len, self.records.values()))
        assert self.n_bytes <= self._bytes_max
        assert len(self.records) <= self._entries_max
        for key, record in self.records.items():
            assert record[layout.KEY_AT :].startswith(key)


_read_time = Struct("<d").unpack_from


def _selected_at(record: bytes) -> float:
    found: float = _read_time(record, 8 * layout.SELECTED_AT)[0]
    return found
