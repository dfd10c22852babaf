"""Reader of JSON dumps, of this service or of Dynamo, piece by piece, for untrusted input.

The document is an object of partitions, each an object with "block_size" and "events" (json_dump
describes it). Events are applied in order to a separate index, one slot per rank, which handles
children that come before their parents; the result is its snapshot. Unusable events and partitions
are skipped and counted; only text of another form, or more than `LoadLimits` allows, ends the
reading with `DumpError`.

Announcements are idempotent here, as a dump is a state and not a history; "copies" counts them.
"""

import contextlib
from functools import partial
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from indexer.dumps import json_scan_kernels as kernels
from indexer.dumps.compact_head import DumpError
from indexer.dumps.compact_reader import DUMP_BLOCK_SIZE_MAX, LoadLimits
from indexer.dumps.json_writer import name_of_tier
from indexer.dumps.recovered_blocks import COPIES_MAX, DumpedPartition, RankKey
from indexer.hashing.block_hashing import Hashes
from indexer.hashing.seeds import U64_MASK
from indexer.index.block_tree import add_lane_step
from indexer.index.groups_record import GroupsRecord
from indexer.index.header_kernels import LANES_MAX
from indexer.index.index_snapshot import StreamPosition
from indexer.index.keyed_roots import ROOTS_MAX, KeyedRootRows
from indexer.index.prefix_index import PrefixIndex
from indexer.index.slot_writer import SlotWriter
from indexer.tiers import N_TIERS

BUFFER_BYTES_MAX = 256 << 20
"""Limit of a value: an event or a small member; a long conversation has some MB."""
INDEX_BYTES_MAX = 4 << 30
"""Memory limit of a partition's index, allowing for many ranks."""
PLACES_BYTES_MAX = 8 << 20
"""Limit of the text with the places of all streams of a partition; a rank takes up to 55."""
HASH_DIGITS_MAX = 20
SPACE = b" \t\r\n"
TIER_OF: dict[str, int] = {name_of_tier(tier): tier for tier in range(N_TIERS + LANES_MAX)}
"""Tiers and lanes by their names in dumps."""


class _Block(msgspec.Struct, gc=False):
    block_hash: int
    tokens_hash: int
    copies: int = 1


class _Stored(msgspec.Struct, gc=False):
    blocks: list[_Block]
    parent_hash: int | None = None


class _Removed(msgspec.Struct, gc=False):
    block_hashes: list[int]


class _Data(msgspec.Struct, gc=False):
    stored: _Stored | None = None
    removed: _Removed | None = None


class _Inner(msgspec.Struct, gc=False):
    data: _Data | str
    dp_rank: int = 0


OF_WORKER = msgspec.Raw(b'"worker"')
"""Domain of blocks in the cache of a worker.  Blocks of other domains belong to no rank."""


class _Event(msgspec.Struct, gc=False):
    worker_id: int
    event: _Inner
    storage_tier: str = "device"
    residency_domain: msgspec.Raw = OF_WORKER


_EVENTS = msgspec.json.Decoder(list[_Event])
_RAW = msgspec.json.Decoder(list[msgspec.Raw])
_EVENT = msgspec.json.Decoder(_Event)
_NUMBERS = msgspec.json.Decoder(dict[str, int])
_GROUPS = msgspec.json.Decoder(dict[str, GroupsRecord])
_NUMBER_PAIRS = msgspec.json.Decoder(dict[str, tuple[int, int]])
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class JsonReader:
    """Incremental reader: `feed` bytes on arrival; complete partitions appear in `partitions`."""

    def __init__(self, limits: LoadLimits) -> None:
        self.partitions: list[DumpedPartition] = []
        self.is_complete = False
        self.bad_entries = 0
        self.blocks_read = 0
        """Blocks read so far; other threads may read this."""
        self._limits = limits
        self._text = _TextBuffer()
        self._open: _PartitionReader | None = None
        self._step = self._read_opening
        self._blocks = self._ranks = self._sets_bytes = self._copies = 0

    def feed(self, data: bytes) -> None:
        """Read more bytes.  Raises DumpError."""
        self._text.add(data)
        while self._step():
            pass
        self.blocks_read = self._blocks + (0 if self._open is None else self._open.blocks)

    def finish(self) -> None:
        """End the input.  Raises DumpError if bytes are missing."""
        if not self.is_complete:
            raise DumpError("the dump is truncated")

    # Each step consumes one piece of the text, and returns False if the piece is incomplete.

    def _read_opening(self) -> bool:
        return self._expect_byte(b"{", self._read_key_or_end)

    def _read_key_or_end(self) -> bool:
        next_byte = self._text.peek()
        if next_byte == b"}":
            self._text.take(1)
            self.is_complete, self._step = True, self._read_nothing
        elif next_byte == b",":
            self._text.take(1)
        elif next_byte:
            return self._read_key()
        return bool(next_byte)

    def _read_nothing(self) -> bool:
        if self._text.peek():
            raise DumpError("unexpected text after the end")
        return False

    def _read_key(self) -> bool:
        key = self._text.take_key()
        if key is None:
            return False
        if len(self.partitions) >= self._limits.partitions:
            raise DumpError(f"more than {self._limits.partitions} partitions")
        if len(key) > self._limits.name_chars:
            raise DumpError("a partition name is missing or too long")
        room = min(self._limits.blocks, self._limits.all_blocks - self._blocks)
        copies = self._limits.copies - self._copies
        self._open = _PartitionReader(key, room, self._limits.ranks - self._ranks, copies)
        self._step = self._read_entry
        return True

    def _read_entry(self) -> bool:
        return self._expect_byte(b"{", self._read_member_or_end)

    def _read_member_or_end(self) -> bool:
        next_byte = self._text.peek()
        if next_byte == b"}":
            self._text.take(1)
            self._close_partition()
            self._step = self._read_key_or_end
        elif next_byte == b",":
            self._text.take(1)
        elif next_byte:
            member = self._text.take_key()
            if member is None:
                return False
            self._member = member
            self._step = self._read_member
        return bool(next_byte)

    def _read_member(self) -> bool:
        next_byte = self._text.peek()
        if not next_byte:
            return False
        if self._member in ("events", "lanes") and next_byte == b"[":
            self._text.take(1)
            self._step = self._read_events
            return True
        value = self._text.take_value()
        if value is None:
            return False
        assert self._open is not None
        self._open.take_member(self._member, value)
        self._step = self._read_member_or_end
        return True

    def _read_events(self) -> bool:
        assert self._open is not None
        values, ended = self._text.take_values()
        if values:
            bad = self._open.take_events(values)
            self.bad_entries += bad
            self._open.has_bad_events |= bad > 0
        if ended:
            self._text.take(1)
            self._open.has_events |= self._member == "events"
            self._open.has_lanes |= self._member == "lanes"
            self._step = self._read_member_or_end
        return ended

    def _close_partition(self) -> None:
        assert self._open is not None
        dumped = self._open.build_partition()
        self._copies += self._open.copies
        self._open = None
        if dumped is None:
            self.bad_entries += 1
            return
        self._blocks += dumped.blocks
        self._ranks += len(dumped.ranks)
        self._sets_bytes += dumped.snapshot.sets.nbytes
        if self._sets_bytes > self._limits.all_sets_bytes:
            raise DumpError("limit of block holders over all partitions exceeded")
        self.partitions.append(dumped)

    def _expect_byte(self, byte: bytes, then: Any) -> bool:
        next_byte = self._text.peek()
        if next_byte and next_byte != byte:
            raise DumpError("not a dump")
        if next_byte:
            self._text.take(1)
            self._step = then
        return bool(next_byte)


class _TextBuffer:
    """Text received and not consumed yet."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._start = 0
        self._state = np.zeros(kernels.STATE_FIELDS, np.int64)

    def add(self, data: bytes) -> None:
        if self._start:
            del self._data[: self._start]
            self._start = 0
        self._data += data
        if len(self._data) > BUFFER_BYTES_MAX:
            raise DumpError(f"a value exceeds {BUFFER_BYTES_MAX} bytes")

    def peek(self) -> bytes:
        """Return the next byte other than white space; empty if none has come."""
        data, at = self._data, self._start
        while at < len(data) and data[at] in SPACE:
            at += 1
        self._start = at
        return bytes(data[at : at + 1])

    def take(self, size: int) -> bytes:
        start, self._start = self._start, self._start + size
        self._state[:] = 0
        return bytes(self._data[start : self._start])

    def take_key(self) -> str | None:
        """Consume a member's name and colon; return None while incomplete."""
        end = self._data.find(b":", self._start)
        while end >= 0:
            try:
                key = msgspec.json.decode(self._data[self._start : end])
            except (UnicodeDecodeError, RecursionError):
                break
            except msgspec.DecodeError:
                end = self._data.find(b":", end + 1)  # the colon was part of a name
                if end - self._start > DUMP_BLOCK_SIZE_MAX:
                    raise DumpError("a member name is not terminated") from None
                continue
            self.take(end + 1 - self._start)
            if not isinstance(key, str):
                break
            return key
        if end >= 0 or len(self._data) - self._start > DUMP_BLOCK_SIZE_MAX:
            raise DumpError("not a dump")
        return None

    def take_value(self) -> bytes | None:
        """Consume a whole value of an object; return None while it is incomplete."""
        complete, end = self._scan_values(one=True)
        return self.take(end) if complete or end else None

    def take_values(self) -> tuple[bytes, bool]:
        """Consume the complete values of an array; return (values, True at the end of the
        array).
        """
        ended, end = self._scan_values(one=False)
        values = self.take(end) if end else b""
        if values and self.peek() == b",":
            self.take(1)
        return values, ended

    def _scan_values(self, *, one: bool) -> tuple[bool, int]:
        view = np.frombuffer(self._data, np.uint8)[self._start :]
        ended = bool(kernels.scan_values(view, self._state, one))
        return ended, int(self._state[kernels.LAST_END])


class _PartitionReader:
    """Partition that is being read."""

    def __init__(self, name: str, blocks_max: int, ranks_max: int, copies_max: int) -> None:
        """copies_max: limit of announcements of blocks after their first"""
        self.has_events = self.has_lanes = self.has_bad_events = False
        self._name = name
        self._ranks_max = ranks_max
        self._copies_max = copies_max
        self.blocks = self.copies = 0
        self._block_size = 0
        self._index = PrefixIndex(max(1, blocks_max))
        self._writers: dict[RankKey, SlotWriter] = {}
        self._watermarks: dict[str, int] = {}
        self._digests: dict[str, int] = {}
        self._partial: dict[str, int] = {}
        self._keyed_roots: dict[str, tuple[int, int]] = {}
        self._groups: dict[str, GroupsRecord] = {}
        self._has_images = False
        self._late_removals: list[tuple[SlotWriter, int, Hashes]] = []
        """Removals until the blocks of lanes are read, some of which have their parents there."""

    def take_member(self, name: str, value: bytes) -> None:
        if len(value) > PLACES_BYTES_MAX:
            return
        try:
            if name == "block_size":
                self._block_size = msgspec.json.decode(value, type=int)
            elif name == "watermarks":
                self._watermarks = _NUMBERS.decode(value)
            elif name == "digests":
                self._digests = _NUMBERS.decode(value)
            elif name == "partial_batches":
                self._partial = _NUMBERS.decode(value)
            elif name == "keyed_roots":
                self._keyed_roots = _NUMBER_PAIRS.decode(value)
            elif name == "groups":
                self._groups = _GROUPS.decode(value)
            elif name == "has_images":
                self._has_images = msgspec.json.decode(value, type=bool)
        except _UNREADABLE:
            return  # a partition without its block size is skipped at its end

    def take_events(self, values: bytes) -> int:
        """Apply some events.  Return the number of unusable events."""
        try:
            try:
                events = _EVENTS.decode(b"[" + values + b"]")
                bad = 0
            # A single malformed event would reject the batch: then each event is decoded
            # separately.
            except msgspec.ValidationError:
                events, bad = _decode_each(_RAW.decode(b"[" + values + b"]"))
        except _UNREADABLE as error:
            raise DumpError(f"not JSON: {error}") from None
        bad += sum(not self._apply_event(event) for event in events)
        stats = self._index.stats()
        self.blocks = stats.blocks
        if stats.bytes > INDEX_BYTES_MAX:
            raise DumpError("memory limit exceeded by ranks and blocks")
        return bad

    def _apply_event(self, event: _Event) -> bool:
        tier = TIER_OF.get(event.storage_tier)
        rank = (event.worker_id, event.event.dp_rank)
        if event.residency_domain != OF_WORKER:
            return False
        if tier is None or not 0 <= rank[0] <= U64_MASK or not 0 <= rank[1] < 2**32:
            return False
        data = event.event.data
        if isinstance(data, str):
            if data == "cleared" and rank in self._writers:
                self._writers[rank].clear()
            return data == "cleared"
        if data.stored is not None:
            parent = data.stored.parent_hash
            names = _to_u64([block.block_hash for block in data.stored.blocks])
            contents = _to_u64([block.tokens_hash for block in data.stored.blocks])
            if names is None or contents is None or (parent and not _is_hash(parent)):
                return False
            writer = self._writer_of(rank)
            if tier >= N_TIERS:
                self._open_lane(writer, tier)
            parent = None if parent is None else parent & U64_MASK
            writer.store(tier, parent, contents, names, counted=False)
            self._add_copies(writer, tier, names, [block.copies for block in data.stored.blocks])
            return True
        if data.removed is None:
            return False
        names = _to_u64(data.removed.block_hashes)
        if names is not None and self._groups:
            self._late_removals.append((self._writer_of(rank), tier, names))
        elif names is not None:
            self._writer_of(rank).remove(tier, names)
        return names is not None

    @staticmethod
    def _open_lane(writer: SlotWriter, tier: int) -> None:
        """Give the index planes for a lane.  Raises DumpError."""
        try:
            while writer.change_tree(partial(add_lane_step, tier - N_TIERS + 1)):
                pass
        except MemoryError:
            raise DumpError("memory limit exceeded by cache groups") from None

    def _add_copies(self, writer: SlotWriter, tier: int, names: Hashes, copies: list[int]) -> None:
        """Add the repeated announcements of an event.  Raises DumpError."""
        if max(copies, default=1) <= 1:
            return
        further = np.array([min(max(count, 1), COPIES_MAX) - 1 for count in copies], np.int64)
        self.copies += int(further.sum())
        if self.copies > self._copies_max:
            raise DumpError("limit of block copies over all partitions exceeded")
        writer.add_copies(tier, names, further)

    def _writer_of(self, rank: RankKey) -> SlotWriter:
        writer = self._writers.get(rank)
        if writer is None:
            if len(self._writers) >= self._ranks_max:
                raise DumpError(f"more than {self._ranks_max} ranks")
            writer = self._writers[rank] = self._index.open_slot()
        return writer

    def build_partition(self) -> DumpedPartition | None:
        """Return the partition; None if it cannot be used."""
        if not self.has_events or not 0 < self._block_size <= DUMP_BLOCK_SIZE_MAX:
            return None
        for owner, tier, removed in self._late_removals:
            owner.remove(tier, removed)
        for (worker_id, dp_rank), writer in self._writers.items():
            key = f"{worker_id}:{dp_rank}"
            last, events = self._watermarks.get(key), self._partial.get(key, 0)
            if last is not None or events:
                next_seq = 0 if last is None else last + 1
                if 0 <= next_seq <= U64_MASK and 0 <= events <= U64_MASK:
                    digest = self._digests.get(key) if next_seq else None
                    is_known = digest is not None and 0 <= digest <= U64_MASK
                    writer.position = StreamPosition(next_seq, events, digest if is_known else None)
        ranks = {rank: writer.slot for rank, writer in self._writers.items()}
        # JSON has no times of live batches
        snapshot = self._index.snapshot()._replace(
            live_at=None, keyed_roots=self._read_keys(), groups=self._read_groups()
        )
        return DumpedPartition(self._name, self._block_size, ranks, snapshot)

    def _read_groups(self) -> dict[int, GroupsRecord]:
        """Return slot -> cache groups; unusable groups are left out."""
        found, has_lanes = {}, self.has_lanes and not self.has_bad_events
        for (worker_id, dp_rank), writer in self._writers.items():
            record = self._groups.get(f"{worker_id}:{dp_rank}")
            if record is not None and record.is_valid():
                is_incomplete = record.is_incomplete or not has_lanes
                found[writer.slot] = msgspec.structs.replace(record, is_incomplete=is_incomplete)
        return found

    def _read_keys(self) -> KeyedRootRows | None:
        """Return the keys of sequences; unusable rows are left out."""
        rows = [
            (int(content), *parts)
            for content, parts in islice(self._keyed_roots.items(), ROOTS_MAX)
            if content.isdecimal()
            and len(content) <= HASH_DIGITS_MAX
            and max(int(content), *parts) <= U64_MASK
            and min(parts) >= 0
        ]
        if not rows and not self._has_images:
            return None
        return KeyedRootRows(np.array(rows, np.uint64).reshape(-1, 3), self._has_images)


def _decode_each(raw_events: list[msgspec.Raw]) -> tuple[list[_Event], int]:
    """Return the well-formed events, and the number of the others."""
    events = []
    for raw in raw_events:
        with contextlib.suppress(msgspec.ValidationError):
            events.append(_EVENT.decode(raw))
    return events, len(raw_events) - len(events)


def _is_hash(value: int) -> bool:
    return -(2**63) <= value <= U64_MASK


def _to_u64(values: list[int]) -> Hashes | None:
    """Return hashes given as u64 or i64; None for other numbers."""
    try:
        return np.array(values, np.uint64)
    except (OverflowError, ValueError):
        if not all(map(_is_hash, values)):
            return None
        # Signed and unsigned numbers with the same 64 bits are the same hash.
        return np.array([value & U64_MASK for value in values], np.uint64)
