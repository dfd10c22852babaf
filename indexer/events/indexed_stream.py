"""Position of a stream in the index, and the steps that advance it.

Turns payloads into changes of the index.  The feed decides which batch is next.
"""

from collections import Counter
from collections.abc import Generator, Mapping
from functools import partial

from indexer.events.batch_applier import BatchApplier
from indexer.events.batch_scratch import BatchScratch
from indexer.events.dropped_events import LOGGED_CHARS_MAX
from indexer.events.event_decoder import Batch, DecodeError, decode, decode_in_steps
from indexer.events.fault_notices import FaultNotices, StreamFault
from indexer.events.kv_event_source import KvSource
from indexer.events.message_batch import MessageBatch
from indexer.events.payload_parser import UNKNOWN_NAMES_MAX
from indexer.events.step_runner import Steps
from indexer.events.uncertainty import ReplayAnchor, payload_digest
from indexer.index.block_tree import BlockTree
from indexer.index.cache_group_status import CacheGroupStatus
from indexer.index.index_snapshot import StreamPosition
from indexer.index.slot_writer import SlotWriter

BATCH_COST = 64
"""Cost of a batch without events, in blocks."""

OTHER_FIELDS = "(others)"
"""Name of all unknown fields beyond the limit of names."""
SMALL_BYTES_MAX = 32 * 1024
"""Limit of bytes of a payload that is read and applied at once."""


class IndexedStream:
    """Index side of a rank's stream.  Counters only grow."""

    def __init__(self, source: KvSource, scratch: BatchScratch) -> None:
        self._scratch = scratch
        self.writers: Mapping[int, SlotWriter] = source.writers
        self.applier = BatchApplier(
            source.dp_rank, source.block_size, source.is_eagle, source.counted, source.facts
        )
        self.applier.copies.total_blocks = source.total_blocks
        self.notices = FaultNotices()
        self._applied_position: StreamPosition | None = None
        """Place behind the last applied batch; None before the first, or after a loss."""
        self._dp_rank = source.dp_rank
        self._resume_position = StreamPosition(0)
        """Place inside a batch where applying continues, or the place of a loaded dump."""
        self.batches = 0
        self.decode_errors = 0
        self.last_error: str | None = None
        self.unknown_fields: Counter[str] = Counter()
        """Unknown fields of events, by name; beyond UNKNOWN_NAMES_MAX names as OTHER_FIELDS."""

    @property
    def last_batch(self) -> ReplayAnchor | None:
        """Last applied batch; None before the first batch, or if that batch was never seen."""
        done = self._applied_position
        return None if done is None else ReplayAnchor(done.next_seq - 1, done.digest)

    @property
    def _last_digest(self) -> int | None:
        return None if self._applied_position is None else self._applied_position.digest

    @property
    def own_writer(self) -> SlotWriter | None:
        return self.writers.get(self._dp_rank)

    @property
    def has_unpositioned_blocks(self) -> bool:
        own = self.own_writer
        return own is not None and own.has_unpositioned_blocks

    @property
    def is_half_cleared(self) -> bool:
        own = self.writers.get(self._dp_rank)
        return own is not None and own.is_half_cleared

    def set_doubt(self, doubt: str | None) -> None:
        """Take why events of the own rank may be missing; None if none are."""
        own, groups = self.own_writer, self.applier.groups
        before = groups.shown_doubt
        groups.set_doubt(own, doubt)
        if own is not None and groups.shown_doubt != before:
            roots = own.keys.roots
            has_keys = roots.has_keys or groups.shown_doubt is not None
            self.applier.common_forms.set_keys(has_salts=roots.has_salts, has_keys=has_keys)

    @property
    def is_doubtful(self) -> bool:
        """True if reusable prefixes of the own rank may be too high or low; on any thread."""
        own = self.own_writer
        status = None if own is None else _group_status(own)
        return status is not None and status.is_doubtful

    @property
    def has_bound(self) -> bool:
        """True if reusable prefixes of the own rank are upper bounds; on any thread."""
        own = self.own_writer
        status = None if own is None else _group_status(own)
        return status is not None and status.is_bound

    def read_cache_groups(self) -> CacheGroupStatus | None:
        """Return the cache groups of the own rank, on any thread; None for a plain rank."""
        own = self.own_writer
        status = None if own is None else _group_status(own)
        if own is None or status is None:
            return None
        blocks = [
            0
            if group.tier is None
            else own.change_tree(partial(_count_blocks, own.slot, group.tier))
            for group in status.groups
        ]
        return status.add_counts(blocks)

    def settle_in_steps(self) -> Steps:
        """Finish the unfinished work of the own slot."""
        own = self.own_writer
        if own is not None:
            yield from own.settle_in_steps()

    def resume_in_steps(self) -> Generator[int, None, StreamPosition | None]:
        """Begin at the place of the own slot, and return the place, if any.

        An earlier listener may have been closed in the midst of an event or a clear: the rest
        comes first, because this moves the place.
        """
        own = self.own_writer
        if own is None:
            return None
        yield from own.settle_in_steps()
        self.applier.groups.begin_groups(own)
        place = own.position
        if place is not None:
            self._resume_position = place
            self._applied_position = place if place.next_seq else None
        return place

    def is_foreign(self, batch: Batch | None) -> bool:
        """Return whether the batch names another rank than the stream's own."""
        return batch is not None and batch.data_parallel_rank not in (None, self._dp_rank)

    def decode_payload(self, payload: bytes, now: float) -> Batch | None:
        """Return the batch; None, and counted, for an unreadable payload."""
        try:
            return self._count_oddities(decode(payload), now)
        except DecodeError as error:
            self._count_unreadable(1, str(error), now)
            return None

    def decode_in_steps(self, payload: bytes, now: float) -> Generator[int, None, Batch | None]:
        """Decode as `decode_payload`; a large payload is read step by step."""
        if len(payload) <= SMALL_BYTES_MAX:
            return self.decode_payload(payload, now)
        try:
            return self._count_oddities((yield from decode_in_steps(payload)), now)
        except DecodeError as error:
            self._count_unreadable(1, str(error), now)
            return None

    def apply_small(self, batch: Batch | None, seq: int, payload: bytes, now: float) -> bool:
        """Apply a live batch at once; return whether done.

        False means that the batch might take long, or is partly in the index already: then
        `apply_in_steps` does the rest.
        """
        if seq == self._resume_position.next_seq:
            return False
        after, writers = StreamPosition(seq + 1, 0, payload_digest(payload)), self.writers
        if batch is not None:
            done = self.applier.apply_small(batch, writers, seq, self._last_digest, after)
            if done is not None:
                # The rest starts behind these events, also after this listener is closed.
                if done:
                    self._resume_position = StreamPosition(seq, done, self._last_digest)
                return False
            self.batches += 1
        self._applied_position = after
        own = writers.get(self._dp_rank)
        if own is not None:
            own.position, own.live_at = after, now
        return True

    def apply_run(self, run: MessageBatch, seq: int, now: float) -> int:
        """Apply the next live batches, usual and numbered from `seq` on; return the count.

        Some events of the following batch may be done as well: `apply_in_steps` does the rest.
        """
        own, scratch = self.writers.get(self._dp_rank), self._scratch
        usual = self.applier.common_forms
        # A partly applied batch needs `apply_in_steps`, which can skip events.
        if own is None or seq == self._resume_position.next_seq or own.slot != usual.slot:
            return 0
        if own.is_half_cleared or own.pending_steps is not None:
            return 0
        roots = own.keys.roots
        if roots.has_keys:
            usual.set_keys(has_salts=roots.has_salts, has_keys=True)
        n_read = scratch.read_messages(run, seq, usual)
        if not n_read:
            return 0
        changes, events = scratch.changes, 0
        after = self._position_behind(run, seq, n_read)
        done = own.apply_changes(changes, after, partial(self._position_within, run, seq, n_read))
        self.applier.count_run_changes(changes, done)
        if done < changes.used:
            n_read, events = scratch.count_whole_messages(n_read, done)
            after = self._position_behind(run, seq, n_read)
        if n_read:
            self.batches += n_read
            self._applied_position, own.live_at = after, now
        if events:
            self._resume_position = StreamPosition(seq + n_read, events, after.digest)
        elif n_read and not done:
            own.position = after  # a run without changes has not moved the place
        return n_read

    def _position_within(
        self, run: MessageBatch, seq: int, n_read: int, done: int
    ) -> StreamPosition:
        """Return the place behind this many changes of the messages that were read."""
        whole, events = self._scratch.count_whole_messages(n_read, done)
        before = self._position_behind(run, seq, whole)
        return StreamPosition(before.next_seq, events, before.digest)

    def _position_behind(self, run: MessageBatch, seq: int, messages: int) -> StreamPosition:
        digest = payload_digest(run.payload_ahead(messages - 1)) if messages else self._last_digest
        return StreamPosition(seq + messages, 0, digest)

    def apply_in_steps(self, batch: Batch | None, seq: int | None) -> Generator[int, None, bool]:
        """Apply a live batch in steps.  Return whether the own rank was emptied on the way."""
        yield BATCH_COST
        if batch is None:
            return False
        self.batches += 1
        skip = self._resume_position.events if seq == self._resume_position.next_seq else 0
        before = None if seq is None else StreamPosition(seq, 0, self._last_digest)
        return (yield from self.applier.apply_in_steps(batch, self.writers, before, skip))

    def apply_replayed_in_steps(self, batch: Batch | None, seq: int) -> Generator[int, None, bool]:
        """Apply as `apply_in_steps`, without counting repeated stores of blocks of unknown place.

        A replay from the very first batch has all such blocks, which are then forgotten before.
        """
        if seq == 0:
            yield from self.forget_unpositioned_in_steps()
        # A replayed store may repeat a block that came from a dump.
        self.applier.copies.counts_duplicates = not self.has_unpositioned_blocks
        try:
            return (yield from self.apply_in_steps(batch, seq))
        finally:
            self.applier.copies.counts_duplicates = True

    def advance(self, seq: int, payload: bytes, live_at: float | None) -> None:
        """Record that batch `seq` is finished, applied or unreadable.

        live_at: the time of a live batch; None for a replayed batch, which may be old.
        """
        self._applied_position = StreamPosition(seq + 1, 0, payload_digest(payload))
        own = self.own_writer
        if own is not None:
            own.position = self._applied_position
            if live_at is not None:
                own.live_at = live_at

    def mark_lost(self) -> None:
        """Record that the batches before the next batch were never seen."""
        self._applied_position = None

    def forget_in_steps(self) -> Steps:
        """Empty the ranks of the stream, since the engine has begun a new life."""
        self._applied_position = None
        self._resume_position = StreamPosition(0)
        yield from self.applier.forget_in_steps(self.writers)

    def forget_unpositioned_in_steps(self) -> Steps:
        if self.has_unpositioned_blocks:
            yield from self.applier.forget_in_steps(self.writers)

    def mark_all_positioned(self) -> None:
        """Record that everything the stream announces from here on is new."""
        own = self.own_writer
        if own is not None:
            own.has_unpositioned_blocks = False

    def _count_oddities(self, batch: Batch, now: float) -> Batch:
        if batch.bad_events:
            self._count_unreadable(batch.bad_events, batch.last_error, now)
        if batch.unknown_fields is not None:
            self._count_unknown_fields(batch.unknown_fields)
        return batch

    def _count_unknown_fields(self, fields: Mapping[str, int]) -> None:
        for name, number in fields.items():
            key = name[:LOGGED_CHARS_MAX]
            if key not in self.unknown_fields and len(self.unknown_fields) >= UNKNOWN_NAMES_MAX:
                key = OTHER_FIELDS
            self.unknown_fields[key] += number

    def _count_unreadable(self, events: int, error: str | None, now: float) -> None:
        self.decode_errors += events
        self.last_error = error
        self.notices.add_notice(StreamFault.UNREADABLE, error or "", now)


def _group_status(writer: SlotWriter) -> CacheGroupStatus | None:
    return None if writer.groups_record is None else writer.group_status


def _count_blocks(slot: int, tier: int, tree: BlockTree) -> int:
    return tree.count_tier_blocks(slot, tier)
