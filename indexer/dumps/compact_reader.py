"""Reader of the compact dump format (compact_dump), piece by piece, for untrusted input.

Every frame is checked before use; claimed sizes are bounded by `LoadLimits`, and the filled arrays
are checked for everything the index relies on: parents before children, existing rows, named
ranks. Any fault ends the reading with `DumpError`.
"""

import zlib
from typing import Any, NamedTuple

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from indexer.dumps.compact_head import (
    U64,
    DumpError,
    TimeConverter,
    add_digests,
    count_lanes_of,
    is_u64,
    read_groups,
    read_live_times,
    read_number,
    read_planes,
    read_ranks,
)
from indexer.dumps.compact_writer import (
    BIN32,
    CHECKSUM_BYTES,
    CHUNK_NODES,
    FORMAT,
    PIECE_BYTES,
    SALT_RULE,
    VERSION,
)
from indexer.dumps.recovered_blocks import COPIES_MAX, DumpedPartition
from indexer.index.index_snapshot import (
    ALIAS_RECORD,
    ANCHOR_RECORD,
    RECORD,
    IndexSnapshot,
)
from indexer.index.keyed_roots import ROOTS_MAX, KeyedRootRows
from indexer.index.orphans import Orphan
from indexer.tiers import N_TIERS

FRAME_BYTES_MAX = 64 << 20
"""Limit of a frame; a frame of nodes has about 1 MiB, that of a partition has a row per rank."""
DUMP_BLOCK_SIZE_MAX = 1 << 16
RECORDS_PER_BLOCK = 8
COPIES_PER_BLOCK = 2


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
        # Checked before the frame arrives, so that a claim cannot fill the buffer.
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
            if read_number(content["end"], "partitions", U64) != len(self.partitions):
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
        self._block_size = read_number(head, "block_size", DUMP_BLOCK_SIZE_MAX)
        self.nodes = read_number(head, "nodes", limits.blocks)
        self._words = read_number(head, "words", 1 << 14)
        self._orphans_max = limits.orphans
        self._planes = read_planes(head)
        self._groups = read_groups(head.get("groups"), limits.ranks, self._planes)
        row = self._planes * self._words * 8
        n_sets = read_number(head, "sets", limits.sets_bytes // max(1, row))
        self.n_records = read_number(head, "records", RECORDS_PER_BLOCK * limits.blocks)
        self.ranks, places = read_ranks(head.get("ranks"), limits.ranks, 64 * self._words)
        self._places = add_digests(places, self.ranks, head.get("digests"))
        self._live_at = None if live_at is None else read_live_times(head, self.ranks, live_at)
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
            if not isinstance(row, list) or len(row) != 6 or not all(is_u64(n) for n in row):
                raise DumpError("malformed orphan")
            slot, tier, *rest = row
            if tier >= N_TIERS + count_lanes_of(self._planes):
                raise DumpError("unknown tier")
            self._orphans.append((slot, Orphan(tier, *rest)))

    def build_partition(self) -> DumpedPartition:
        if self._filled != self.nodes + 1:
            raise DumpError("nodes are missing")
        sets = np.frombuffer(self.sets.join_pieces(), np.uint64)
        sets = sets.reshape(self._n_sets, self._planes, self._words)
        # Unused nodes refer to the first set.
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
            or (records["tier"] >= N_TIERS + count_lanes_of(self._planes)).any()
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
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DumpError(f"a frame is not msgpack: {error}") from None
    if not isinstance(content, dict):
        raise DumpError("a frame is not a map")
    return content


def count_copies(snapshot: IndexSnapshot) -> int:
    """Return the number of announcements after the first of each block."""
    extra = np.maximum(snapshot.records["count"].astype(np.int64), 1) - 1
    orphans = sum(min(orphan.copies, COPIES_MAX) - 1 for _, orphan in snapshot.orphans)
    return int(extra.sum()) + orphans


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
