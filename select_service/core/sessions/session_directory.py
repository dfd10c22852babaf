"""Sessions of all scopes of a process: bookings, leases, messages of replicas, and expiry.

A session is bound to the rank of the last turn.  Every live reservation of the session has a lease,
kept by the ledger and given back by the release of the reservation, whatever the cause; a session
without leases ends after the idle time.

Bindings have versions, (sequence, writer).  The higher version counts on every replica, also over a
live lease, so that replicas agree.  As in Dynamo sequences begin with the clock in nanoseconds and
go past every version seen; but not in a process that has just started.  Such a process does not yet
know the peers' sessions and gives new sessions sequences far below, which fall with time: of two
bindings of a session the first counts.  A process that restarts therefore follows the peers instead
of moving live sessions.
"""

from collections.abc import Callable, Container, Iterator
from itertools import islice
from typing import Literal, NamedTuple, TypeAlias

from select_service.core.identity import PartitionKey
from select_service.core.load.ledger_memory import LedgerMemory
from select_service.core.load.reservation_view import ReservationView
from select_service.core.sessions.compiled import session_kernels as kernels
from select_service.core.sessions.session_settings import SessionSettings
from select_service.core.sessions.session_table import (
    NO_SESSIONS,
    SCOPE_SESSIONS_MAX,
    BindingVersion,
    SessionBinding,
    SessionCounts,
    SessionState,
    SessionTable,
    add_counts,
)

SESSIONS_MAX = 524_288
"""Most sessions of all scopes, some 400 bytes each."""
SCOPES_MAX = 2048
"""Most scopes with sessions, each with 26 MiB of reserved, mostly untouched memory."""
FREED_PER_TURN = 2
"""Tables of vanished scopes freed per turn, up to a millisecond each."""
EXPIRED_PER_TURN_MAX = 2048
"""Sessions ended per turn, about 0.3 us each."""
SEQUENCE_LEAD_S = 3600.0
"""Lead over the clock (nanoseconds in Dynamo) from which received sequences are ignored.

Otherwise a single message could raise the sequences of the fleet to the end of the numbers.
"""

WARM_UP_S = 15.0
"""Seconds after which a process with repairs knows the peers' sessions."""
FALLING_END_MS = 1 << 44
"""Milliseconds since the epoch at which falling sequences reach 0, in the year 2527."""
LOWEST_VERSION = BindingVersion(0, 0)
"""Version below all others."""

IgnoredBinding: TypeAlias = Literal["unknown_partition", "stale", "lead", "capacity"]


class SessionUse(NamedTuple):
    """Use of a session that replicas are notified of.

    binding: state after the use
    """

    key: PartitionKey
    session_id: str
    binding: SessionBinding


class SessionDirectory:
    """Sessions of a process."""

    def __init__(self, settings: SessionSettings, memory: LedgerMemory, writer_id: int) -> None:
        """Create a directory without sessions.

        memory: memory of the ledger, which keeps the leases
        writer_id: router id of this process
        """
        self.settings = settings
        self._memory = memory
        self._writer_id = writer_id
        self._tables: dict[PartitionKey, SessionTable] = {}
        self._by_address: dict[int, tuple[PartitionKey, SessionTable]] = {}
        self._n_tables = 0
        self._freed_counts = NO_SESSIONS
        self.scopes: Container[PartitionKey] | None = None
        """Scopes with workers; the empty tables of others are freed.  None keeps all tables."""
        self.notify: Callable[[SessionUse, bool], None] | None = None
        """Receiver of a use, and whether the session ended; must not block, raise or call back."""
        self.warm_up_s = WARM_UP_S
        """Seconds with low sequences; without repairs the idle time, after which every session that
        still lives was used.
        """
        self._began_at: float | None = None
        self._is_warm = False
        self.ignored_leads = 0
        """Number of received versions too far ahead of the clock."""
        self._n_applied = 0

    def __len__(self) -> int:
        """Return the number of sessions, including expired sessions until the next sweep."""
        return sum(len(table) for table in self._tables.values())

    def tables(self) -> Iterator[tuple[PartitionKey, SessionTable]]:
        """Iterate over the scopes that have had sessions, by number."""
        return iter(self._tables.items())

    def find_table(self, key: PartitionKey) -> SessionTable | None:
        return self._tables.get(key)

    def make_table(self, key: PartitionKey, block_size: int, now: float) -> SessionTable | None:
        """Return the table of a scope, created if missing; None without room for another scope."""
        table = self._tables.get(key)
        if table is None:
            if len(self._tables) >= SCOPES_MAX:
                return None
            table = SessionTable(self.settings.idle_s, self._writer_id, block_size)
            self._n_tables = table.number = self._n_tables + 1
            self._tables[key] = table
            self._by_address[table.address] = key, table
            if self._is_warm:
                table.raise_sequence(self._clock_ns(now))
            else:
                table.let_versions_fall(FALLING_END_MS - int(self.settings.epoch_s * 1e3))
            self._limit_counts()
        table.set_block_size(block_size)
        return table

    def _clock_ns(self, now: float) -> int:
        """Return the nanoseconds since the epoch."""
        return max(0, int((now + self.settings.epoch_s) * 1e9))

    def _warm_up(self, now: float) -> None:
        """Begin with rising sequences once the process had time to learn the sessions of others."""
        if self._began_at is None:
            self._began_at = now
        if now - self._began_at >= self.warm_up_s:
            self._is_warm = True
            for table in self._tables.values():
                table.raise_sequence(self._clock_ns(now))

    def _limit_counts(self) -> None:
        """Divide the free places among the scopes."""
        if not self._tables:
            return
        free = max(0, SESSIONS_MAX - len(self)) // len(self._tables)
        for table in self._tables.values():
            table.limit_count(min(SCOPE_SESSIONS_MAX, len(table) + free))

    def find_session(self, key: PartitionKey, session_id: str, now: float) -> SessionState | None:
        """Return a session that has not expired; changes nothing."""
        table = self._tables.get(key)
        return None if table is None else table.find_state(session_id, now)

    # Uses by reservations here

    def book_turn(
        self, booking: ReservationView, session_id: str, is_final: bool, now: float
    ) -> bool:
        """Bind a session to the rank of a new reservation, which takes a lease.

        Return False if the table has no room: the reservation then belongs to no session.
        """
        table = self.make_table(booking.key, booking.account.block_size, now)
        row = kernels.TABLE_FULL
        if table is not None:
            row = table.book_turn(session_id, booking.rank, booking.isl_tokens, is_final, now)
        if table is None or row == kernels.TABLE_FULL:
            return False
        self._memory.lease_session(booking.row, table.address, row)
        self._notify_use(booking.key, table, row)
        return True

    def note_slot(self, booking: ReservationView, version: int) -> None:
        """Note the slot of a reservation in the session, for the fast path.

        version: version of the slot in the rank table
        """
        found = self._memory.session_of(booking.row)
        if found is not None:
            self._by_address[found[0]][1].set_slot(found[1], booking.slot, version)

    def session_id_of(self, booking: ReservationView) -> str | None:
        """Return the session that a reservation leases, or leased until the present release."""
        found = self._memory.session_of(booking.row)
        if found is None:
            return None
        return self._by_address[found[0]][1].read_row(found[1]).session_id

    def on_moved(self, booking: ReservationView, now: float) -> None:
        """Bind the session of a reservation to the rank to which the reservation moved."""
        if (found := self._memory.session_of(booking.row)) is not None:
            key, table = self._by_address[found[0]]
            table.move_binding(found[1], booking.rank, now)
            self._notify_use(key, table, found[1])

    def forget_contexts(
        self, key: PartitionKey, worker_id: int, dp_rank: int | None, at: float
    ) -> None:
        """Let sessions without leases have no cache on a worker with a cleared cache.

        dp_rank: None means all ranks of the worker
        at: time of the clear
        """
        if (table := self._tables.get(key)) is not None:
            table.forget_contexts(worker_id, dp_rank, at)

    def notify_use_of(self, booking: ReservationView) -> None:
        """Notify replicas of the session of a reservation that was just booked or released."""
        if self.notify is not None:
            found = self._memory.session_of(booking.row)
            if found is not None:
                self._notify_use(*self._by_address[found[0]], found[1])

    def _notify_use(self, key: PartitionKey, table: SessionTable, row: int) -> None:
        if self.notify is not None:
            session = table.read_row(row)
            use = SessionUse(key, session.session_id, session.binding)
            self.notify(use, not table.is_live(row))

    def raise_version(self, use: SessionUse, above: BindingVersion, now: float) -> SessionUse:
        """Give a session that began again a version above the version of the end."""
        table = self._tables[use.key]
        row = table.find_row(use.session_id, now)
        table.raise_version(row, above)
        return use._replace(binding=table.read_binding(row))

    # Uses elsewhere

    def leads_clock(self, version: BindingVersion, now: float) -> bool:
        """Return whether a received version is too far ahead of the clock, and count it if so."""
        if version.sequence <= self._clock_ns(now + SEQUENCE_LEAD_S):
            return False
        self.ignored_leads += 1
        return True

    def apply_binding(
        self,
        table: SessionTable,
        session_id: str,
        binding: SessionBinding,
        idle_since: float,
        now: float,
    ) -> IgnoredBinding | None:
        """Apply a binding of a replica or a file; None means applied.

        idle_since: time of the last use on the clock of this process
        """
        if self.leads_clock(binding.version, now):
            return "lead"
        if idle_since + table.ttl_s <= now:
            return "stale"
        self._n_applied += 1
        result, _ = table.apply_binding(session_id, binding, min(idle_since, now), now)
        if result == kernels.TABLE_FULL:
            return "capacity"
        return "stale" if result == kernels.STALE else None

    def lease_received(self, booking: ReservationView, session_id: str, now: float) -> None:
        """Give a reservation that a replica admitted a lease of the session.

        An unknown session is bound to the rank with the lowest version, until a message or a repair
        brings the true version.
        """
        table = self.make_table(booking.key, booking.account.block_size, now)
        if table is None:
            return
        row = table.find_row(session_id, now)
        if not row:
            bound = SessionBinding(*booking.rank, LOWEST_VERSION, booking.isl_tokens)
            _, row = table.apply_binding(session_id, bound, now, now)
        if row != kernels.TABLE_FULL:
            table.lease_row(row)
            self._memory.lease_session(booking.row, table.address, row)

    # Ends

    def end_session(self, key: PartitionKey, session_id: str, now: float) -> SessionState | None:
        """End a session; return the last state, None without such a session."""
        table = self._tables.get(key)
        session = None if table is None else table.find_state(session_id, now)
        if table is not None and session is not None:
            table.end_session(session.row)
            if self.notify is not None:
                # The state from before the end, since the row may be free now.
                self.notify(SessionUse(key, session_id, session.binding), True)
        return session

    def expire_sessions(self, now: float) -> bool:
        """End sessions that were idle for too long; return whether more are due."""
        left = EXPIRED_PER_TURN_MAX
        for table in self._tables.values():
            left -= table.expire_sessions(now, left)
            if not left:
                break
        self._free_tables()
        self._limit_counts()
        if not self._is_warm:
            self._warm_up(now)
        return not left

    def _free_tables(self) -> None:
        """Free tables without sessions and leases in scopes without a worker."""
        if self.scopes is None:
            return
        empty = (
            key
            for key, table in self._tables.items()
            if not len(table) and not table.n_leases and key not in self.scopes
        )
        for key in list(islice(empty, FREED_PER_TURN)):
            table = self._tables.pop(key)
            del self._by_address[table.address]
            self._freed_counts = add_counts([self._freed_counts, table.counts])

    @property
    def changes(self) -> int:
        """Number that differs after every booking of a session, message or end."""
        return self._n_applied + sum(self.counts) + self.n_leases + len(self)

    @property
    def counts(self) -> SessionCounts:
        """Sums over all scopes, including freed scopes."""
        return add_counts([self._freed_counts, *(t.counts for t in self._tables.values())])

    @property
    def n_leases(self) -> int:
        return sum(table.n_leases for table in self._tables.values())

    def check_invariants(self) -> None:
        """Check the invariants, for tests."""
        assert len(self._by_address) == len(self._tables)
        for table in self._tables.values():
            table.check_invariants()
        assert len(self) <= SESSIONS_MAX
