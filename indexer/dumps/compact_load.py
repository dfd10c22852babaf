"""Reads the compact form (compact_dump) piece by piece, believing nothing.

Every frame is checked before it is used; what it claims is bounded by `LoadLimits`, and the arrays
that it fills are checked for what the rest of the index relies on: parents before children, rows
that exist, ranks that are named. Whatever is wrong ends the reading with `DumpError`.
"""

import math
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeGuard

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from indexer.dumps.compact_dump import (
    AGE_S_MAX,
    BIN32,
    CHECKSUM_BYTES,
    CHUNK_NODES,
    FORMAT,
    PIECE_BYTES,
    VERSION,
)
from indexer.dumps.held_blocks import COPIES_MAX, DumpedPartition
from indexer.index.orphans import Orphan
from indexer.index.snapshot import ALIAS_RECORD, ANCHOR_RECORD, RECORD, IndexSnapshot, Place
from indexer.index.state_kernels import PLANES
from indexer.tiers import N_TIERS

FRAME_BYTES_MAX = 64 << 20
"""A frame of nodes has little more than 1 MiB; that of a partition has a row per rank."""
DUMP_BLOCK_SIZE_MAX = 1 << 16
RECORDS_PER_BLOCK = 8
COPIES_PER_BLOCK = 2
U64 = 2**64

LiveAt = Callable[[float, float], float | None]
"""(when the dump was taken, unix seconds; age of something then) -> monotonic seconds here, or None
when the clocks cannot be right."""


class DumpError(Exception):
    """What was read is no dump that can be used; the text says why."""


class LoadLimits(NamedTuple):
    """How much of a dump is taken.

    Of each partition: `blocks`, `sets_bytes`, `orphans`, and of all together what
    `full_partitions` of them may have.  The rest over all of them.
    """

    blocks: int
    full_partitions: int = 8
    partitions: int = 1024
    ranks: int = 65_536
    name_chars: int = 4096
    sets_bytes: int = 1 << 29
    orphans: int = 65_536

    @property
    def all_blocks(self) -> int:
        return self.blocks * self.full_partitions

    @property
    def all_sets_bytes(self) -> int:
        return self.sets_bytes * self.full_partitions

    @property
    def all_orphans(self) -> int:
        return self.orphans * self.full_partitions

    @property
    def all_records(self) -> int:
        """Names and counts that are not the usual ones."""
        return RECORDS_PER_BLOCK * self.all_blocks

    @property
    def copies(self) -> int:
        """Announcements of blocks after their first, of all partitions together."""
        return COPIES_PER_BLOCK * self.all_blocks


class CompactLoader:
    """Feed bytes as they come; partitions appear in `partitions` as they are complete.

    live_at: without it, nothing is known of when the streams were last heard.
    """

    def __init__(self, limits: LoadLimits, live_at: LiveAt | None = None) -> None:
        self.partitions: list[DumpedPartition] = []
        self.is_complete = False
        self.bad_entries = 0
        self.blocks_read = 0
        """So far; other threads may look at it."""
        self._limits = limits
        self._live_at = live_at
        self._buffer = bytearray()
        self._begun = False
        self._open: _Partition | None = None
        self._blocks = self._ranks = 0
        self._sets_bytes = self._records = self._copies = self._orphans = 0

    def feed(self, data: bytes) -> None:
        """Raises DumpError."""
        self._buffer += data
        start = 0
        while (end := self._frame_end(start)) is not None:
            self._take(_checked(memoryview(self._buffer)[start + 5 : end].tobytes()))
            start = end
        del self._buffer[:start]
        unread = 0 if self._open is None else self._open.unread
        self.blocks_read = self._blocks - unread

    def finish(self) -> None:
        """No more bytes come.  Raises DumpError when some are missing."""
        if self._buffer or not self.is_complete:
            raise DumpError("the dump is cut short")

    def _frame_end(self, start: int) -> int | None:
        """Where the frame at `start` ends; None when it has not come yet."""
        head = self._buffer[start : start + 5]
        if head and head[:1] != BIN32:
            raise DumpError("not a compact dump")
        if len(head) < 5:
            return None
        size = int.from_bytes(head[1:], "big")
        if not CHECKSUM_BYTES < size <= FRAME_BYTES_MAX:
            raise DumpError(f"a frame of {size} bytes")
        end = start + 5 + size
        return end if end <= len(self._buffer) else None

    def _take(self, content: dict[str, Any]) -> None:
        if not self._begun:
            self._begin(content)
        elif self.is_complete:
            raise DumpError("frames after the end")
        elif "partition" in content:
            self._close_partition()
            self._open = self._opened(content)
        elif "end" in content:
            self._close_partition()
            if _number(content["end"], "partitions", U64) != len(self.partitions):
                raise DumpError("partitions are missing")
            self.is_complete = True
        elif self._open is None:
            raise DumpError("a frame outside of a partition")
        else:
            self._open.take(content)

    def _begin(self, content: dict[str, Any]) -> None:
        if content.get("format") != FORMAT:
            raise DumpError("not a dump of this service")
        if content.get("version") != VERSION:
            raise DumpError(f"version {content.get('version')!r}, this service reads {VERSION}")
        self._begun = True

    def _opened(self, content: dict[str, Any]) -> "_Partition":
        limits = self._limits
        if len(self.partitions) >= limits.partitions:
            raise DumpError(f"more than {limits.partitions} partitions")
        partition = _Partition(content, limits, self._live_at)
        self._blocks += partition.nodes
        self._ranks += len(partition.ranks)
        if self._blocks > limits.all_blocks or self._ranks > limits.ranks:
            raise DumpError(f"more than {limits.all_blocks} blocks or {limits.ranks} ranks")
        self._sets_bytes += partition.sets.size
        self._records += partition.n_records
        if self._sets_bytes > limits.all_sets_bytes or self._records > limits.all_records:
            raise DumpError("more holders of blocks than all partitions may have")
        return partition

    def _close_partition(self) -> None:
        if self._open is None:
            return
        held, self._open = self._open.finished(), None
        self._orphans += len(held.snapshot.orphans)
        self._copies += copies_of(held.snapshot)
        if self._orphans > self._limits.all_orphans or self._copies > self._limits.copies:
            raise DumpError("more orphans or copies of blocks than all partitions may have")
        self.partitions.append(held)


class _Partition:
    """One partition that is being read."""

    def __init__(self, head: dict[str, Any], limits: LoadLimits, live_at: LiveAt | None) -> None:
        name = head["partition"]
        if not isinstance(name, str) or len(name) > limits.name_chars:
            raise DumpError("a partition without a proper name")
        self._name = name
        self._block_size = _number(head, "block_size", DUMP_BLOCK_SIZE_MAX)
        self.nodes = _number(head, "nodes", limits.blocks)
        self._words = _number(head, "words", 1 << 14)
        self._orphans_max = limits.orphans
        row = PLANES * self._words * 8
        n_sets = _number(head, "sets", limits.sets_bytes // max(1, row))
        self.n_records = _number(head, "records", RECORDS_PER_BLOCK * limits.blocks)
        self.ranks, places = _ranks(head.get("ranks"), limits.ranks, 64 * self._words)
        self._places = _with_digests(places, self.ranks, head.get("digests"))
        self._live_at = None if live_at is None else _live_times(head, self.ranks, live_at)
        # Pages of these are touched as rows arrive, so a claim alone takes no memory.
        self._local = np.zeros(self.nodes + 1, np.uint64)
        self._engine = np.zeros(self.nodes + 1, np.uint64)
        self._parent = np.zeros(self.nodes + 1, np.int32)
        self._holders = np.zeros(self.nodes + 1, np.uint32)
        self._parent[0] = -2
        self._filled = 1
        self._n_sets = n_sets
        self.sets = _Bytes(n_sets * row)
        self._records = _Bytes(self.n_records * RECORD.itemsize)
        self._orphans: list[tuple[int, Orphan]] = []

    @property
    def unread(self) -> int:
        """Nodes that were announced and have not come."""
        return self.nodes + 1 - self._filled

    def take(self, content: dict[str, Any]) -> None:
        if "local" in content:
            self._take_nodes(content)
        elif "sets" in content:
            self.sets.add(_unzipped(content["sets"], PIECE_BYTES))
        elif "records" in content:
            self._records.add(_unzipped(content["records"], PIECE_BYTES))
        elif "orphans" in content:
            self._take_orphans(content["orphans"])

    def _take_nodes(self, content: dict[str, Any]) -> None:
        local, engine = _column(content, "local"), _column(content, "engine")
        start, stop = self._filled, self._filled + local.size
        if not 0 < local.size <= CHUNK_NODES or stop > self.nodes + 1:
            raise DumpError("more nodes than announced")
        depth = _narrow_column(content, "depth", local.size)
        holders = _narrow_column(content, "holders", local.size)
        if not engine.size == depth.size == holders.size == local.size:
            raise DumpError("columns of different lengths")
        number = np.arange(start, stop, dtype=np.int64)
        parent = number - depth
        if (depth == 0).any() or (parent < 0).any():
            raise DumpError("a child before its parent")
        if (holders >= self._n_sets).any():
            raise DumpError("a holder set that does not exist")
        self._local[start:stop], self._engine[start:stop] = local, engine
        self._parent[start:stop], self._holders[start:stop] = parent, holders
        self._filled = stop

    def _take_orphans(self, rows: Any) -> None:
        if not isinstance(rows, list) or len(self._orphans) + len(rows) > self._orphans_max:
            raise DumpError("too many orphans")
        for row in rows:
            if not isinstance(row, list) or len(row) != 6 or not all(_is_u64(n) for n in row):
                raise DumpError("an orphan of another form")
            slot, tier, *rest = row
            if tier >= N_TIERS:
                raise DumpError("a tier that does not exist")
            self._orphans.append((slot, Orphan(tier, *rest)))

    def finished(self) -> DumpedPartition:
        if self._filled != self.nodes + 1:
            raise DumpError("nodes are missing")
        sets = np.frombuffer(self.sets.whole(), np.uint64)
        sets = sets.reshape(self._n_sets, PLANES, self._words)
        if self._n_sets == 0 or sets[0].any():
            raise DumpError("the first holder set must be empty")
        snapshot = IndexSnapshot(
            local=self._local,
            engine=self._engine,
            parent=self._parent,
            holders=self._holders,
            sets=sets,
            records=self._checked_records(),
            slots=tuple(self.ranks.values()),
            places=self._places,
            orphans=tuple(self._orphans),
            live_at=self._live_at,
        )
        return DumpedPartition(self._name, self._block_size, self.ranks, snapshot)

    def _checked_records(self) -> NDArray[np.void]:
        records = np.frombuffer(self._records.whole(), RECORD).copy()
        anchors = records[records["kind"] == ANCHOR_RECORD]
        aliases = records[records["kind"] == ALIAS_RECORD]
        if (
            len(anchors) + len(aliases) != len(records)
            or (anchors["key"] > self.nodes).any()
            or (aliases["node"] > self.nodes).any()
            or (records["tier"] >= N_TIERS).any()
        ):
            raise DumpError("a record of a node or tier that does not exist")
        records["count"] = np.minimum(records["count"], COPIES_MAX)
        return records


class _Bytes:
    """Bytes of a known total that come in pieces."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pieces = bytearray()

    def add(self, piece: bytes) -> None:
        self._pieces += piece
        if len(self._pieces) > self.size:
            raise DumpError("more bytes than announced")

    def whole(self) -> bytearray:
        if len(self._pieces) != self.size:
            raise DumpError("bytes are missing")
        return self._pieces


def _checked(frame: bytes) -> dict[str, Any]:
    body = frame[CHECKSUM_BYTES:]
    if xxhash.xxh3_64_intdigest(body) != int.from_bytes(frame[:CHECKSUM_BYTES], "little"):
        raise DumpError("a checksum is wrong")
    try:
        content = msgspec.msgpack.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise DumpError(f"a frame that is not msgpack: {error}") from None
    if not isinstance(content, dict):
        raise DumpError("a frame that is no map")
    return content


def copies_of(snapshot: IndexSnapshot) -> int:
    """Announcements after the first of each block."""
    extra = np.maximum(snapshot.records["count"].astype(np.int64), 1) - 1
    orphans = sum(min(orphan.copies, COPIES_MAX) - 1 for _, orphan in snapshot.orphans)
    return int(extra.sum()) + orphans


def _is_u64(value: Any) -> bool:
    return type(value) is int and 0 <= value < U64


def _number(content: Any, name: str, most: int) -> int:
    value: Any = content.get(name) if isinstance(content, dict) else None
    if not _is_u64(value) or value > most:
        raise DumpError(f"{name}: {str(value)[:40]}, at most {most} expected")
    number: int = value
    return number


def _ranks(
    rows: Any, ranks_max: int, slots: int
) -> tuple[dict[tuple[int, int], int], dict[int, Place]]:
    """(worker_id, dp_rank) -> slot, and slot -> place."""
    if not isinstance(rows, list) or len(rows) > ranks_max:
        raise DumpError("too many ranks, or none listed")
    ranks: dict[tuple[int, int], int] = {}
    places: dict[int, Place] = {}
    for row in rows:
        if not isinstance(row, list) or len(row) != 5:
            raise DumpError("a rank of another form")
        slot, worker_id, dp_rank, next_seq, events = row
        placed = next_seq is None or _is_u64(next_seq)
        named = all(map(_is_u64, (slot, worker_id, dp_rank, events)))
        if not placed or not named or slot >= slots:
            raise DumpError("a rank of another form")
        ranks[worker_id, dp_rank] = slot
        if next_seq is not None:
            places[slot] = Place(next_seq, events)
    return ranks, places


def _with_digests(
    places: dict[int, Place], ranks: dict[tuple[int, int], int], digests: Any
) -> dict[int, Place]:
    """`places` with what `digests` says of each of `ranks`; older dumps say nothing."""
    if digests is None:
        return places
    if not isinstance(digests, list) or len(digests) != len(ranks):
        raise DumpError("digests of another form")
    if not all(digest is None or _is_u64(digest) for digest in digests):
        raise DumpError("digests of another form")
    told = dict(zip(ranks.values(), digests, strict=True))
    return {
        slot: msgspec.structs.replace(place, digest=told[slot]) for slot, place in places.items()
    }


def _live_times(
    head: dict[str, Any], ranks: dict[tuple[int, int], int], live_at: LiveAt
) -> dict[int, float] | None:
    """slot -> monotonic seconds; None when it does not tell, or by a clock that is wrong."""
    taken_at, ages = head.get("taken_at"), head.get("ages")
    if taken_at is None and ages is None:
        return None
    if not _is_seconds(taken_at, 1e12) or not isinstance(ages, list) or len(ages) != len(ranks):
        raise DumpError("ages of another form")
    times: dict[int, float] = {}
    for slot, age in zip(ranks.values(), ages, strict=True):
        if age is None:
            continue
        if not _is_seconds(age, AGE_S_MAX):
            raise DumpError("ages of another form")
        time = live_at(taken_at, age)
        if time is None:
            return None
        times[slot] = time
    return times


def _is_seconds(value: Any, most: float) -> TypeGuard[float]:
    return type(value) in (int, float) and math.isfinite(value) and 0 <= value <= most


def _column(content: dict[str, Any], name: str) -> NDArray[np.uint64]:
    raw = content.get(name)
    if not isinstance(raw, bytes) or len(raw) % 8:
        raise DumpError(f"{name}: not a column")
    return np.frombuffer(raw, "<u8")


def _narrow_column(content: dict[str, Any], name: str, rows: int) -> NDArray[np.uint32]:
    raw = _unzipped(content.get(name), 4 * rows)
    if len(raw) % 4:
        raise DumpError(f"{name}: not a column")
    return np.frombuffer(raw, "<u4")


def _unzipped(raw: Any, size_max: int) -> bytes:
    if not isinstance(raw, bytes):
        raise DumpError("not a column")
    unzipper = zlib.decompressobj()
    try:
        data = unzipper.decompress(raw, size_max + 1)
    except zlib.error as error:
        raise DumpError(f"not readable: {error}") from None
    if not unzipper.eof or len(data) > size_max:
        raise DumpError("a column longer than announced")
    return data
