"""Reader of the compact dump format (compact_dump), piece by piece, for untrusted input.

Every frame is checked before use; claimed sizes are bounded by `LoadLimits`, and the filled arrays
are checked for everything the index relies on: parents before children, existing rows, named
ranks. Any fault ends the reading with `DumpError`.
"""

import math
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeGuard

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from indexer.dumps.compact_writer import (
    AGE_S_MAX,
    BIN32,
    CHECKSUM_BYTES,
    CHUNK_NODES,
    FORMAT,
    PIECE_BYTES,
    SALT_RULE,
    VERSION,
)
from indexer.dumps.recovered_blocks import COPIES_MAX, DumpedPartition
from indexer.index.cache_groups import GroupsRecord
from indexer.index.header_kernels import LANES_MAX, PLANES
from indexer.index.index_snapshot import (
    ALIAS_RECORD,
    ANCHOR_RECORD,
    RECORD,
    IndexSnapshot,
    StreamPosition,
)
from indexer.index.keyed_roots import ROOTS_MAX, KeyedRootRows
from indexer.index.orphans import Orphan
from indexer.tiers import N_TIERS

FRAME_BYTES_MAX = 64 << 20
"""Limit of a frame; a frame of nodes has about 1 MiB, that of a partition has a row per rank."""
PLANES_MAX = PLANES + 2 * LANES_MAX
DUMP_BLOCK_SIZE_MAX = 1 << 16
RECORDS_PER_BLOCK = 8
COPIES_PER_BLOCK = 2
U64 = 2**64

TimeConverter = Callable[[float, float], float | None]
"""Converter from (unix seconds of the dump, age at that time) to monotonic seconds here; None if
the clocks disagree.
"""


class DumpError(Exception):
    """Error for input that cannot be used as a dump; the text gives the reason."""


class LoadLimits(NamedTuple):
    """Limits of a dump.

    `blocks`, `sets_bytes` and `orphans` hold per partition, and `full_partitions` times as much in
    all.  The others hold for all partitions together.
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
        """Limit of records, the unusual names and counts, of all partitions together."""
        return RECORDS_PER_BLOCK * self.all_blocks

    @property
    def copies(self) -> int:
        """Limit of announcements after the first of each block, of all partitions together."""
        return COPIES_PER_BLOCK * self.all_blocks


class CompactReader:
    """Incremental reader: `feed` bytes on arrival; complete partitions appear in `partitions`.

    live_at: converter of times; None means that times of live batches are ignored.
    """

    def __init__(self, limits: LoadLimits, live_at: TimeConverter | None = None) -> None:
        self.partitions: list[DumpedPartition] = []
        self.is_complete = False
        self.bad_entries = 0
        self.blocks_read = 0
        """Blocks read so far; other threads may read this."""
        self.has_older_salts = False
        """True for a dump of a version that salted first blocks only: of salted sequences only the
        first block matches, until the engine announces the others again.
        """
        self._limits = limits
        self._live_at = live_at
        self._buffer = bytearray()
        self._begun = False
        self._partition: _PartitionReader | None = None
        self._blocks = self._ranks = 0
        self._sets_bytes = self._records = self._copies = self._orphans = 0

    def feed(self, data: bytes) -> None:
        """Read more bytes.  Raises DumpError."""
        self._buffer += data
        start = 0
        # Frames are consumed as they complete, so the buffer holds one unfinished frame at most.
        while (end := self._frame_end(start)) is not None:
            self._take_frame(_decode_frame(memoryview(self._buffer)[start + 5 : end].tobytes()))
            start = end
        del self._buffer[:start]
        unread = 0 if self._partition is None else self._partition.unread_nodes
        self.blocks_read = self._blocks - unread

    def finish(self) -> None:
        """End the input.  Raises DumpError if bytes are missing."""
        if self._buffer or not self.is_complete:
            raise DumpError("the dump is truncated")

    def _frame_end(self, start: int) -> int | None:
        """Return the end of the frame at `start`; None if it is incomplete."""
        head = self._buffer[start : start + 5]
        if head and head[:1] != BIN32:
            raise DumpError("not a compact dump")
        if len(head) < 5:
            return None
        size = int.from_bytes(head[1:], "big")
        if not CHECKSUM_BYTES < size <= FRAME_BYTES_MAX:
            raise DumpError(f"invalid frame size: {size} bytes")
        end = start + 5 + size
        return end if end <= len(self._buffer) else None

    def _take_frame(self, content: dict[str, Any]) -> None:
        if not self._begun:
            self._check_format(content)
        elif self.is_complete:
            raise DumpError("unexpected frames after the end")
        elif "partition" in content:
            self._close_partition()
            self._partition = self._open_partition(content)
        elif "end" in content:
            self._close_partition()
            if _read_number(content["end"], "partitions", U64) != len(self.partitions):
                raise DumpError("partitions are missing")
            self.is_complete = True
        elif self._partition is None:
            raise DumpError("unexpected frame outside of a partition")
        else:
            self._partition.take_frame(content)

    def _check_format(self, content: dict[str, Any]) -> None:
        if content.get("format") != FORMAT:
            raise DumpError("not a dump of this service")
        if content.get("version") != VERSION:
            raise DumpError(f"version {content.get('version')!r}, this service reads {VERSION}")
        salt_rule = content.get("salt_rule", SALT_RULE - 1)
        if salt_rule not in (SALT_RULE - 1, SALT_RULE):
            raise DumpError(f"salt rule {str(salt_rule)[:40]}, this service reads {SALT_RULE}")
        self.has_older_salts = salt_rule != SALT_RULE
        self._begun = True

    def _open_partition(self, content: dict[str, Any]) -> "_PartitionReader":
        limits = self._limits
        if len(self.partitions) >= limits.partitions:
            raise DumpError(f"more than {limits.partitions} partitions")
        partition = _PartitionReader(content, limits, self._live_at)
        self._blocks += partition.nodes
        self._ranks += len(partition.ranks)
        if self._blocks > limits.all_blocks or self._ranks > limits.ranks:
            raise DumpError(f"more than {limits.all_blocks} blocks or {limits.ranks} ranks")
        self._sets_bytes += partition.sets.size
        self._records += partition.n_records
        if self._sets_bytes > limits.all_sets_bytes or self._records > limits.all_records:
            raise DumpError("limit of block holders over all partitions exceeded")
        return partition

    def _close_partition(self) -> None:
        if self._partition is None:
            return
        held, self._partition = self._partition.build_partition(), None
        self._orphans += len(held.snapshot.orphans)
        self._copies += count_copies(held.snapshot)
        if self._orphans > self._limits.all_orphans or self._copies > self._limits.copies:
            raise DumpError("limit of orphans or block copies over all partitions exceeded")
        self.partitions.append(held)


class _PartitionReader:
    """Partition that is being read."""

    def __init__(
        self, head: dict[str, Any], limits: LoadLimits, live_at: TimeConverter | None
    ) -> None:
        name = head["partition"]
        if not isinstance(name, str) or len(name) > limits.name_chars:
            raise DumpError("a partition name is missing or too long")
        self._name = name
        self._block_size = _read_number(head, "block_size", DUMP_BLOCK_SIZE_MAX)
        self.nodes = _read_number(head, "nodes", limits.blocks)
        self._words = _read_number(head, "words", 1 << 14)
        self._orphans_max = limits.orphans
        self._planes = _read_planes(head)
        self._groups = _read_groups(head.get("groups"), limits.ranks, self._planes)
        row = self._planes * self._words * 8
        n_sets = _read_number(head, "sets", limits.sets_bytes // max(1, row))
        self.n_records = _read_number(head, "records", RECORDS_PER_BLOCK * limits.blocks)
        self.ranks, places = _read_ranks(head.get("ranks"), limits.ranks, 64 * self._words)
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
        self.sets = _PieceBuffer(n_sets * row)
        self._records = _PieceBuffer(self.n_records * RECORD.itemsize)
        self._orphans: list[tuple[int, Orphan]] = []
        self._keyed_roots: KeyedRootRows | None = None

    @property
    def unread_nodes(self) -> int:
        """Nodes announced and not received yet."""
        return self.nodes + 1 - self._filled

    def take_frame(self, content: dict[str, Any]) -> None:
        if "local" in content:
            self._take_nodes(content)
        elif "sets" in content:
            self.sets.add_piece(_decompress(content["sets"], PIECE_BYTES))
        elif "records" in content:
            self._records.add_piece(_decompress(content["records"], PIECE_BYTES))
        elif "orphans" in content:
            self._take_orphans(content["orphans"])
        elif "keyed_roots" in content:
            self._take_keyed_roots(content)

    def _take_keyed_roots(self, content: dict[str, Any]) -> None:
        rows, has_images = _read_column(content, "keyed_roots"), content.get("has_images")
        if rows.size % 3 or rows.size > 3 * ROOTS_MAX or not isinstance(has_images, bool):
            raise DumpError("malformed or too many keyed roots")
        self._keyed_roots = KeyedRootRows(rows.reshape(-1, 3).astype(np.uint64), has_images)

    def _take_nodes(self, content: dict[str, Any]) -> None:
        local, engine = _read_column(content, "local"), _read_column(content, "engine")
        start, stop = self._filled, self._filled + local.size
        if not 0 < local.size <= CHUNK_NODES or stop > self.nodes + 1:
            raise DumpError("more nodes than declared")
        depth = _read_narrow_column(content, "depth", local.size)
        holders = _read_narrow_column(content, "holders", local.size)
        if not engine.size == depth.size == holders.size == local.size:
            raise DumpError("columns have different lengths")
        number = np.arange(start, stop, dtype=np.int64)
        parent = number - depth
        if (depth == 0).any() or (parent < 0).any():
            raise DumpError("a child precedes its parent")
        if (holders >= self._n_sets).any():
            raise DumpError("a node refers to a missing holder set")
        self._local[start:stop], self._engine[start:stop] = local, engine
        self._parent[start:stop], self._holders[start:stop] = parent, holders
        self._filled = stop

    def _take_orphans(self, rows: Any) -> None:
        if not isinstance(rows, list) or len(self._orphans) + len(rows) > self._orphans_max:
            raise DumpError("too many orphans")
        for row in rows:
            if not isinstance(row, list) or len(row) != 6 or not all(_is_u64(n) for n in row):
                raise DumpError("malformed orphan")
            slot, tier, *rest = row
            if tier >= N_TIERS + _lanes_of(self._planes):
                raise DumpError("unknown tier")
            self._orphans.append((slot, Orphan(tier, *rest)))

    def build_partition(self) -> DumpedPartition:
        if self._filled != self.nodes + 1:
            raise DumpError("nodes are missing")
        sets = np.frombuffer(self.sets.join_pieces(), np.uint64)
        sets = sets.reshape(self._n_sets, self._planes, self._words)
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
            positions=self._places,
            orphans=tuple(self._orphans),
            live_at=self._live_at,
            keyed_roots=self._keyed_roots,
            groups=self._groups,
        )
        return DumpedPartition(self._name, self._block_size, self.ranks, snapshot)

    def _checked_records(self) -> NDArray[np.void]:
        records = np.frombuffer(self._records.join_pieces(), RECORD).copy()
        anchors = records[records["kind"] == ANCHOR_RECORD]
        aliases = records[records["kind"] == ALIAS_RECORD]
        if (
            len(anchors) + len(aliases) != len(records)
            or (anchors["key"] > self.nodes).any()
            or (aliases["node"] > self.nodes).any()
            or (records["tier"] >= N_TIERS + _lanes_of(self._planes)).any()
        ):
            raise DumpError("a record refers to a missing node or tier")
        # A false count costs memory and time per copy when the dump is attached.
        records["count"] = np.minimum(records["count"], COPIES_MAX)
        return records


class _PieceBuffer:
    """Bytes of a known total that come in pieces."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pieces = bytearray()

    def add_piece(self, piece: bytes) -> None:
        self._pieces += piece
        if len(self._pieces) > self.size:
            raise DumpError("more bytes than declared")

    def join_pieces(self) -> bytearray:
        if len(self._pieces) != self.size:
            raise DumpError("bytes are missing")
        return self._pieces


def _decode_frame(frame: bytes) -> dict[str, Any]:
    body = frame[CHECKSUM_BYTES:]
    if xxhash.xxh3_64_intdigest(body) != int.from_bytes(frame[:CHECKSUM_BYTES], "little"):
        raise DumpError("checksum mismatch")
    try:
        content = msgspec.msgpack.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise DumpError(f"a frame is not msgpack: {error}") from None
    if not isinstance(content, dict):
        raise DumpError("a frame is not a map")
    return content


def count_copies(snapshot: IndexSnapshot) -> int:
    """Return the number of announcements after the first of each block."""
    extra = np.maximum(snapshot.records["count"].astype(np.int64), 1) - 1
    orphans = sum(min(orphan.copies, COPIES_MAX) - 1 for _, orphan in snapshot.orphans)
    return int(extra.sum()) + orphans


def _is_u64(value: Any) -> bool:
    return type(value) is int and 0 <= value < U64


def _read_number(content: Any, name: str, most: int) -> int:
    value: Any = content.get(name) if isinstance(content, dict) else None
    if not _is_u64(value) or value > most:
        raise DumpError(f"{name}: {str(value)[:40]}, at most {most} expected")
    number: int = value
    return number


def _read_ranks(
    rows: Any, ranks_max: int, slots: int
) -> tuple[dict[tuple[int, int], int], dict[int, StreamPosition]]:
    """Return (worker_id, dp_rank) -> slot, and slot -> place."""
    if not isinstance(rows, list) or len(rows) > ranks_max:
        raise DumpError("ranks are missing or too many")
    ranks: dict[tuple[int, int], int] = {}
    places: dict[int, StreamPosition] = {}
    for row in rows:
        if not isinstance(row, list) or len(row) != 5:
            raise DumpError("malformed rank")
        slot, worker_id, dp_rank, next_seq, events = row
        placed = next_seq is None or _is_u64(next_seq)
        named = all(map(_is_u64, (slot, worker_id, dp_rank, events)))
        if not placed or not named or slot >= slots:
            raise DumpError("malformed rank")
        ranks[worker_id, dp_rank] = slot
        if next_seq is not None:
            places[slot] = StreamPosition(next_seq, events)
    return ranks, places


def _lanes_of(planes: int) -> int:
    return (planes - PLANES) // 2


def _read_planes(head: dict[str, Any]) -> int:
    """Return the planes of the partition's holder sets."""
    planes = PLANES if head.get("planes") is None else _read_number(head, "planes", PLANES_MAX)
    if planes < PLANES or planes % 2:
        raise DumpError(f"planes: {planes}, an even number from {PLANES} expected")
    return planes


def _read_groups(rows: Any, ranks_max: int, planes: int) -> dict[int, GroupsRecord]:
    """Return slot -> cache groups, of the ranks with several."""
    if rows is None:
        return {}
    try:
        found = msgspec.convert(rows, list[tuple[int, GroupsRecord]])
    except msgspec.ValidationError as error:
        raise DumpError(f"malformed groups: {error}") from None
    if len(found) > ranks_max:
        raise DumpError("groups of too many ranks")
    for _, record in found:
        if not record.is_valid() or record.lanes > _lanes_of(planes):
            raise DumpError("groups with numbers out of range")
    return dict(found)


def _with_digests(
    places: dict[int, StreamPosition], ranks: dict[tuple[int, int], int], digests: Any
) -> dict[int, StreamPosition]:
    """Return `places` with the digests of each of `ranks`; older dumps have none."""
    if digests is None:
        return places
    if not isinstance(digests, list) or len(digests) != len(ranks):
        raise DumpError("malformed digests")
    if not all(digest is None or _is_u64(digest) for digest in digests):
        raise DumpError("malformed digests")
    told = dict(zip(ranks.values(), digests, strict=True))
    return {
        slot: msgspec.structs.replace(place, digest=told[slot]) for slot, place in places.items()
    }


def _live_times(
    head: dict[str, Any], ranks: dict[tuple[int, int], int], live_at: TimeConverter
) -> dict[int, float] | None:
    """Return slot -> monotonic seconds; None without times, or if the clocks disagree."""
    taken_at, ages = head.get("taken_at"), head.get("ages")
    if taken_at is None and ages is None:
        return None
    if not _is_seconds(taken_at, 1e12) or not isinstance(ages, list) or len(ages) != len(ranks):
        raise DumpError("malformed ages")
    times: dict[int, float] = {}
    for slot, age in zip(ranks.values(), ages, strict=True):
        if age is None:
            continue
        if not _is_seconds(age, AGE_S_MAX):
            raise DumpError("malformed ages")
        time = live_at(taken_at, age)
        if time is None:
            return None
        times[slot] = time
    return times


def _is_seconds(value: Any, most: float) -> TypeGuard[float]:
    return type(value) in (int, float) and math.isfinite(value) and 0 <= value <= most


def _read_column(content: dict[str, Any], name: str) -> NDArray[np.uint64]:
    raw = content.get(name)
    if not isinstance(raw, bytes) or len(raw) % 8:
        raise DumpError(f"malformed column: {name}")
    return np.frombuffer(raw, "<u8")


def _read_narrow_column(content: dict[str, Any], name: str, rows: int) -> NDArray[np.uint32]:
    raw = _decompress(content.get(name), 4 * rows)
    if len(raw) % 4:
        raise DumpError(f"malformed column: {name}")
    return np.frombuffer(raw, "<u4")


def _decompress(raw: Any, size_max: int) -> bytes:
    if not isinstance(raw, bytes):
        raise DumpError("malformed column")
    unzipper = zlib.decompressobj()
    try:
        data = unzipper.decompress(raw, size_max + 1)
    except zlib.error as error:
        raise DumpError(f"column cannot be decompressed: {error}") from None
    # The limit stops a small frame from unpacking to gigabytes.
    if not unzipper.eof or len(data) > size_max:
        raise DumpError("a column is longer than declared")
    return data
