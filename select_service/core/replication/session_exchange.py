"""Sessions between replicas: sending uses, applying the uses of peers, and digests.

Uses are sent as by Dynamo: at every booking of a session, and when a lease ends.  Messages
may be lost, and a replica that joins late has received none.  Once a second every replica therefore
publishes, for some scopes in turn, 64 sums over parts of its table; a peer whose sums differ over
several digests reads the sessions of these parts (`SessionRepair`).  Sums leave out sessions that
are about to end, since replicas do not end a session at exactly the same time.

The end of a session is remembered for a while, against late messages and repairs.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta, Struct

from select_service.core.identity import PartitionKey
from select_service.core.load.ledger import Cause, Ledger
from select_service.core.load.new_reservation import NewReservation
from select_service.core.load.reservation_view import ReservationView
from select_service.core.registry.fleet.partition import Partition
from select_service.core.replication.load_events import DETAIL_CHARS_MAX, PeerFrameError
from select_service.core.replication.session_events import SessionEvent, encode_session_event
from select_service.core.sessions.session_directory import (
    IgnoredBinding,
    SessionDirectory,
    SessionUse,
)
from select_service.core.sessions.session_table import (
    N_PARTS,
    BindingVersion,
    SessionTable,
)
from select_service.schemas.common import NAME_CHARS_MAX

SESSION_DIGEST_TOPIC = b"select-service.session-digest.v1"
LINES_MAX = 64
"""Scopes per digest; the next digest continues with the others."""
SUMMED_ROWS_MAX = 98_304
"""Rows summed per digest, some 2 ns each; the last scope may exceed this limit."""
SESSION_DIGEST_BYTES_MAX = 512 * 1024
CORRECTIONS_PER_S = 256
"""Own bindings sent in answer to older bindings; digests correct the rest."""
ENDED_MAX = 8192
"""Ended sessions that are remembered; the oldest goes first."""

_Name = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
_Unsigned = Annotated[int, Meta(ge=0)]

IgnoredSession: TypeAlias = IgnoredBinding | Literal["ended", "own"]


class SessionDigestLine(Struct, array_like=True, frozen=True):
    """Sums of a scope.

    is_full: whether the table had to evict sessions, so that some are missing for good
    sums: sum of fingerprints of each part
    """

    model_name: _Name
    tenant_id: _Name
    is_full: bool
    sums: Annotated[list[_Unsigned], Meta(min_length=N_PARTS, max_length=N_PARTS)]


class SessionDigest(Struct, kw_only=True, frozen=True):
    """Digest of the sessions of a replica."""

    router_id: _Unsigned
    number: _Unsigned
    lines: Annotated[list[SessionDigestLine], Meta(max_length=LINES_MAX)]


class EndedSession(NamedTuple):
    """End of a session that is remembered, with the version that ended."""

    version: BindingVersion
    at: float


_encode_digest = msgspec.msgpack.Encoder().encode
_digest_of = msgspec.msgpack.Decoder(SessionDigest).decode


class SessionExchange:
    """Exchange of sessions between this process and its peers."""

    def __init__(
        self,
        directory: SessionDirectory,
        partitions: dict[PartitionKey, Partition],
        router_id: int,
    ) -> None:
        self.directory = directory
        self.router_id = router_id
        self._partitions = partitions
        self._emit: Callable[[bytes], None] | None = None
        self._ended: OrderedDict[tuple[PartitionKey, str], EndedSession] = OrderedDict()
        self._now = 0.0
        self._corrections_until, self._corrections_left = 0.0, CORRECTIONS_PER_S
        self._next_line = 0
        self._digests = 0

    def start_sending(
        self, ledger: Ledger, emit: Callable[[bytes], None], *, repairs: bool = True
    ) -> None:
        """Send uses of sessions here to the peers from now on.

        emit: receives payloads; must not block, raise or call back
        repairs: whether the sessions of peers are read by repairs
        """
        # Without repairs only uses show sessions: after the idle time every live session had one.
        if not repairs:
            self.directory.warm_up_s = self.directory.settings.idle_s
        if self._emit is None:
            # Bookings are sent by the directory, once the session is bound.
            ledger.add_listener(self, needs_bookings=False, needs_moves=False)
        self._emit, self.directory.notify = emit, self._send_use

    def _send_use(self, use: SessionUse, is_ended: bool) -> None:
        if is_ended:
            self._remember_end(use)
        elif self._has_ended(use):
            ended = self._ended[use.key, use.session_id]
            use = self.directory.raise_version(use, ended.version, self._now)
        if self._emit is not None:
            self._emit(encode_session_event(SessionEvent(use, is_ended)))

    # As a listener of the ledger

    def on_booked(self, booking: NewReservation, cause: Cause, now: float) -> None:
        """Ignore bookings: the directory sends the use of a session."""

    def on_prefill_completed(self, booking: ReservationView, cause: Cause, now: float) -> None:
        """Ignore ends of prefills: only bookings and ends use a session."""

    def on_released(self, booking: ReservationView, cause: Cause, now: float) -> None:
        """Send the end of a lease, unless the replica that admitted the reservation does."""
        self._now = now
        if booking.origin is None or cause == "client":
            self.directory.notify_use_of(booking)

    # Messages of peers

    def apply_event(self, event: SessionEvent, now: float) -> IgnoredSession | None:
        """Apply a message of a peer.  Return None if applied, else the reason why not.

        A peer with an older binding to another rank gets the own binding at once.
        """
        reason = self.apply_use(event.use, event.is_ended, now, now)
        if reason == "ended":
            self.resend_end(event.use)
        elif reason == "stale" and not event.is_ended:
            self._correct_peer(event.use, now)
        return reason

    def _correct_peer(self, use: SessionUse, now: float) -> None:
        own = self.directory.find_session(use.key, use.session_id, now)
        if own is None or own.binding.version <= use.binding.version:
            return
        if now >= self._corrections_until:
            self._corrections_until, self._corrections_left = now + 1.0, CORRECTIONS_PER_S
        if self._corrections_left and own.binding.rank != use.binding.rank:
            self._corrections_left -= 1
            self._send_use(use._replace(binding=own.binding), False)

    def apply_use(
        self, use: SessionUse, is_ended: bool, used_at: float, now: float
    ) -> IgnoredSession | None:
        """Apply a use or an end of a session.

        used_at: time of the use on the clock of this process
        """
        self._now = now
        partition = self._partitions.get(use.key)
        if partition is None:
            return "unknown_partition"
        if is_ended:
            return self._apply_end(use, now)
        if self._has_ended(use):
            return "ended"
        table = self.directory.make_table(use.key, partition.block_size, now)
        if table is None:
            return "capacity"
        return self.directory.apply_binding(table, use.session_id, use.binding, used_at, now)

    def _apply_end(self, use: SessionUse, now: float) -> IgnoredSession | None:
        # If remembered, such a version would refuse every later binding of the session.
        if self.directory.leads_clock(use.binding.version, now):
            return "lead"
        self._remember_end(use)
        table = self.directory.find_table(use.key)
        found = None if table is None else table.find_state(use.session_id, now)
        if table is None or found is None or found.binding.version > use.binding.version:
            return "stale"
        table.end_session(found.row)
        return None

    def _remember_end(self, use: SessionUse) -> None:
        place = use.key, use.session_id
        old = self._ended.pop(place, None)
        version = use.binding.version if old is None else max(old.version, use.binding.version)
        self._ended[place] = EndedSession(version, self._now)
        if len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)

    def _has_ended(self, use: SessionUse) -> bool:
        ended = self._ended.get((use.key, use.session_id))
        return ended is not None and use.binding.version <= ended.version

    def resend_end(self, use: SessionUse) -> None:
        """Repeat the end of a session that a peer still lists."""
        ended = self._ended.get((use.key, use.session_id))
        if ended is not None and self._emit is not None:
            bound = use.binding._replace(version=ended.version)
            self._emit(encode_session_event(SessionEvent(use._replace(binding=bound), True)))

    def run_turn(self, now: float) -> bool:
        """End sessions that were idle for too long; return whether more are due."""
        self._now = now
        self._forget_ends(now)
        return self.directory.expire_sessions(now)

    def _forget_ends(self, now: float) -> None:
        """Forget ends when no peer can have the session any more."""
        while self._ended:
            place, ended = next(iter(self._ended.items()))
            if ended.at + 2 * self.directory.settings.idle_s > now:
                break
            del self._ended[place]

    # Digests

    def make_digest(self, now: float) -> bytes:
        """Return the digest of the next scopes, encoded."""
        self._digests += 1
        lines: list[SessionDigestLine] = []
        rows, size = 0, 0
        for key, table in self._next_tables():
            if rows >= SUMMED_ROWS_MAX or size >= SESSION_DIGEST_BYTES_MAX // 2:
                break
            self._next_line += 1
            if not len(table):
                continue
            rows += table.n_rows
            size += 4 * (len(key.model_name) + len(key.tenant_id)) + 10 * N_PARTS
            lines.append(SessionDigestLine(*key, table.is_full, table.sum_parts(now).tolist()))
            if len(lines) == LINES_MAX:
                break
        digest = SessionDigest(router_id=self.router_id, number=self._digests, lines=lines)
        return _encode_digest(digest)

    def _next_tables(self) -> Iterator[tuple[PartitionKey, SessionTable]]:
        """Iterate over all tables, beginning behind the last digest."""
        tables = list(self.directory.tables())
        begin = self._next_line = self._next_line % len(tables) if tables else 0
        yield from tables[begin:] + tables[:begin]

    def summed_rows(self, line: SessionDigestLine) -> int:
        """Return the number of rows that a comparison with the line sums."""
        table = self.directory.find_table(PartitionKey(line.model_name, line.tenant_id))
        return 0 if table is None else table.n_rows

    def differing_parts(self, line: SessionDigestLine, now: float) -> int:
        """Return the mask of the parts of a scope in which a peer's sums differ from the own."""
        key = PartitionKey(line.model_name, line.tenant_id)
        if key not in self._partitions:
            return 0
        table = self.directory.find_table(key)
        # A full table lacks sessions for good; reading them would only evict others.
        if line.is_full or (table is not None and table.is_full):
            return 0
        own = [0] * N_PARTS if table is None else table.sum_parts(now).tolist()
        pairs = zip(own, line.sums, strict=True)
        return sum(1 << part for part, (a, b) in enumerate(pairs) if a != b)

    def check_invariants(self) -> None:
        """Check the invariants, for tests."""
        self.directory.check_invariants()
        assert len(self._ended) <= ENDED_MAX


def decode_session_digest(payload: bytes) -> SessionDigest:
    """Decode a digest.  Raises PeerFrameError."""
    if len(payload) > SESSION_DIGEST_BYTES_MAX:
        raise PeerFrameError(f"{len(payload)} bytes, at most {SESSION_DIGEST_BYTES_MAX} expected")
    try:
        return _digest_of(payload)
    except (ValueError, RecursionError) as error:
        raise PeerFrameError(str(error)[:DETAIL_CHARS_MAX]) from None
