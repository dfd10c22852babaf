"""How far one stream is in the index, and the steps that take it further.

Payloads in, changes of the index out.  Which batch is next is the feed's business.
"""

from collections.abc import Generator, Mapping
from functools import partial

from indexer.events.batch_applier import BatchApplier, is_unsettled
from indexer.events.desk import Desk
from indexer.events.doubt import Anchor, payload_digest
from indexer.events.kv_events import Batch, DecodeError, decode, decoding
from indexer.events.kv_source import KvSource
from indexer.events.notices import Fault, Notices
from indexer.events.run import Run
from indexer.events.stepping import Steps
from indexer.index.slot_writer import SlotWriter
from indexer.index.snapshot import Place

BATCH_COST = 64
"""What a batch costs beside its events, in blocks."""

SMALL_BYTES_MAX = 32 * 1024
"""A payload that may be read and applied at once."""


class IndexedStream:
    """The index's side of one rank's stream.  Counters only grow."""

    def __init__(self, source: KvSource, desk: Desk) -> None:
        self._desk = desk
        self.writers: Mapping[int, SlotWriter] = source.writers
        self.applier = BatchApplier(
            source.dp_rank, source.block_size, source.is_eagle, source.counted
        )
        self.applier.total_blocks = source.total_blocks
        self.notices = Notices()
        self._done: Place | None = None
        """The place behind the last applied batch; None when there is none, or it was lost."""
        self._dp_rank = source.dp_rank
        self._resumed = Place(0)
        """Where another index had come to, whose blocks the own slot began with; or this one, in
        the midst of a batch."""
        self.batches = 0
        self.decode_errors = 0
        self.last_error: str | None = None

    @property
    def last(self) -> Anchor | None:
        """The last applied batch; None when there is none, or it was never seen."""
        done = self._done
        return None if done is None else Anchor(done.next_seq - 1, done.digest)

    @property
    def _digest(self) -> int | None:
        return None if self._done is None else self._done.digest

    @property
    def own(self) -> SlotWriter | None:
        return self.writers.get(self._dp_rank)

    @property
    def has_unplaced_blocks(self) -> bool:
        own = self.own
        return own is not None and own.unplaced_blocks

    @property
    def is_half_cleared(self) -> bool:
        own = self.own
        return own is not None and own.is_half_cleared

    def settling(self) -> Steps:
        """What the own slot has left undone."""
        own = self.own
        if own is not None:
            yield from own.settling()

    def resuming(self) -> Generator[int, None, Place | None]:
        """Go on at the place of the own slot, which is returned, if it has any.

        A listener before this one may have been closed in the midst of an event or a clear: what
        it left undone comes first, as it moves the place.
        """
        own = self.own
        if own is None:
            return None
        yield from own.settling()
        place = own.place
        if place is not None:
            self._resumed = place
            self._done = place if place.next_seq else None
        return place

    def is_foreign(self, batch: Batch | None) -> bool:
        """Does it name another rank than the stream's own?"""
        return batch is not None and batch.data_parallel_rank not in (None, self._dp_rank)

    def decoded(self, payload: bytes, now: float) -> Batch | None:
        """None, and counted, when it is unreadable."""
        try:
            return self._read(decode(payload), now)
        except DecodeError as error:
            self._count_unreadable(1, str(error), now)
            return None

    def decoding(self, payload: bytes, now: float) -> Generator[int, None, Batch | None]:
        """As `decoded`; a large one is read step by step."""
        if len(payload) <= SMALL_BYTES_MAX:
            return self.decoded(payload, now)
        try:
            return self._read((yield from decoding(payload)), now)
        except DecodeError as error:
            self._count_unreadable(1, str(error), now)
            return None

    def apply_small(self, batch: Batch | None, seq: int, payload: bytes, now: float) -> bool:
        """One live batch at once; False when it might take long or some of it is in the index
        already: then `applying` does what is left of it."""
        if seq == self._resumed.next_seq:
            return False
        after, writers = Place(seq + 1, 0, payload_digest(payload)), self.writers
        if batch is not None:
            done = self.applier.apply_small(batch, writers, seq, self._digest, after)
            if done is not None:
                if done:
                    self._resumed = Place(seq, done, self._digest)
                return False
            self.batches += 1
        self._done = after
        own = writers.get(self._dp_rank)
        if own is not None:
            own.place, own.live_at = after, now
        return True

    def apply_run(self, run: Run, seq: int, now: float) -> int:
        """The next live batches at once, as far as they are usual and numbered from `seq` on.

        Returns how many.  Of the one behind them some events may be done as well: `applying` does
        what is left of it.
        """
        own, desk = self.own, self._desk
        usual = self.applier.usual
        if own is None or seq == self._resumed.next_seq or not usual.knows(own.slot):
            return 0
        if is_unsettled(own, own):
            return 0
        n_read = desk.read(run, seq, usual)
        if not n_read:
            return 0
        changes, events = desk.changes, 0
        after = self._place_behind(run, seq, n_read)
        done = own.carry_out(changes, after, partial(self._place_within, run, seq, n_read))
        self.applier.count_usual(changes, done)
        if done < changes.used:
            n_read, events = desk.messages_of(n_read, done)
            after = self._place_behind(run, seq, n_read)
        if n_read:
            self.batches += n_read
            self._done, own.live_at = after, now
        if events:
            self._resumed = Place(seq + n_read, events, after.digest)
        elif n_read:
            own.place = after  # no change may have been part of it
        return n_read

    def _place_within(self, run: Run, seq: int, n_read: int, done: int) -> Place:
        """Of the stream, behind so many changes of the messages that were read."""
        whole, events = self._desk.messages_of(n_read, done)
        before = self._place_behind(run, seq, whole)
        return Place(before.next_seq, events, before.digest)

    def _place_behind(self, run: Run, seq: int, messages: int) -> Place:
        digest = payload_digest(run.payload(messages - 1)) if messages else self._digest
        return Place(seq + messages, 0, digest)

    def applying(self, batch: Batch | None, seq: int | None) -> Generator[int, None, bool]:
        """One live batch.  Returns whether the own rank was emptied on the way."""
        yield BATCH_COST
        if batch is None:
            return False
        self.batches += 1
        skip = self._resumed.events if seq == self._resumed.next_seq else 0
        before = None if seq is None else Place(seq, 0, self._digest)
        return (yield from self.applier.applying(batch, self.writers, before, skip))

    def applying_replayed(self, batch: Batch | None, seq: int) -> Generator[int, None, bool]:
        """As `applying`; blocks of unknown place may be told of again, which must not count.

        A replay from the very first batch tells all of them: then they are forgotten instead.
        """
        if seq == 0:
            yield from self.forgetting_unplaced()
        self.applier.takes_duplicates = not self.has_unplaced_blocks
        try:
            return (yield from self.applying(batch, seq))
        finally:
            self.applier.takes_duplicates = True

    def advance(self, seq: int, payload: bytes, live_at: float | None) -> None:
        """Batch `seq` is done with, whether it could be applied or not.

        live_at: now, unless it came by replay, which tells of the past.
        """
        self._done = Place(seq + 1, 0, payload_digest(payload))
        own = self.own
        if own is not None:
            own.place = self._done
            if live_at is not None:
                own.live_at = live_at

    def lose(self) -> None:
        """The batches before the next one were never seen."""
        self._done = None

    def forgetting(self) -> Steps:
        """The engine has begun a new life."""
        self._done = None
        self._resumed = Place(0)
        yield from self.applier.forgetting(self.writers)

    def forgetting_unplaced(self) -> Steps:
        if self.has_unplaced_blocks:
            yield from self.applier.forgetting(self.writers)

    def place_all(self) -> None:
        """What the stream tells from here on is new."""
        own = self.own
        if own is not None:
            own.unplaced_blocks = False

    def _read(self, batch: Batch, now: float) -> Batch:
        if batch.bad_events:
            self._count_unreadable(batch.bad_events, batch.last_error, now)
        return batch

    def _count_unreadable(self, events: int, error: str | None, now: float) -> None:
        self.decode_errors += events
        self.last_error = error
        self.notices.add(Fault.UNREADABLE, error or "", now)
