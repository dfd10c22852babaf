"""Table of the sessions of a scope, over arrays that kernels read and change (session_layout)."""

from collections.abc import Iterable, Iterator
from random import SystemRandom
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from indexer.hashing.seeds import U64_MASK
from indexer.page_memory import zeroed_array
from select_service.core.identity import Rank
from select_service.core.load.compiled import session_layout as layout
from select_service.core.sessions.compiled import session_kernels as kernels

SCOPE_SESSIONS_MAX = 65_536
"""Most sessions per scope, as in Dynamo."""
_ENDED_ROWS_MAX = 4096
"""Most ended sessions with live reservations; with more the table counts as full."""
_BUCKETS = 1 << 16
N_PARTS = 1 << layout.PART_BITS
ALL_PARTS = (1 << N_PARTS) - 1
END_MARGIN_S = 5.0
"""Seconds before the end in which a session counts in no sum, or a quarter of the idle time."""


class BindingVersion(NamedTuple):
    """Version of a binding; the higher version counts on every replica."""

    sequence: int
    writer_id: int


class SessionBinding(NamedTuple):
    """Binding of a session.

    dp_rank: None means any rank of the worker
    context_tokens: length of the last turn; 0 means unknown
    """

    worker_id: int
    dp_rank: int | None
    version: BindingVersion
    context_tokens: int = 0

    @property
    def rank(self) -> Rank:
        return Rank(self.worker_id, self.dp_rank or 0)


class SessionState(NamedTuple):
    """State of a session at the moment of reading.

    row: row of the table
    leases: live reservations
    idle_since: time of the last use
    """

    row: int
    session_id: str
    binding: SessionBinding
    leases: int
    idle_since: float
    bound_at: float
    turns: int
    order: int
    is_final: bool


class SessionCounts(NamedTuple):
    """Sums over the life of a table; see session_layout."""

    created: int
    followed: int
    moved: int
    evicted: int
    expired: int
    ended: int
    refused: int


NO_SESSIONS = SessionCounts(*[0] * 7)


def add_counts(each: Iterable[SessionCounts]) -> SessionCounts:
    """Return the sums."""
    return SessionCounts(*map(sum, zip(*each, strict=True)))


class SessionTable:
    """Sessions of a scope."""

    def __init__(self, ttl_s: float, writer_id: int, block_size: int) -> None:
        """Reserve the arrays.

        ttl_s: idle seconds after which a session ends
        writer_id: router id of this process
        """
        n_rows = SCOPE_SESSIONS_MAX + _ENDED_ROWS_MAX + 1
        self.header = np.zeros(layout.HEADER_LENGTH, np.int64)
        self._numbers = self.header.data
        rows = zeroed_array(n_rows * layout.FIELDS, np.int64)
        self._rows = rows.reshape(-1, layout.FIELDS)
        self.fields, self._times = rows.data, rows.view(np.float64).data
        self._names = zeroed_array(n_rows * layout.NAME_WORDS, np.uint64)
        self._heads = zeroed_array(_BUCKETS, np.int32)
        for at, array in (
            (layout.ROWS, rows),
            (layout.NAMES, self._names),
            (layout.HEADS, self._heads),
        ):
            self.header[at], self.header[at + 1] = array.ctypes.data, array.size
        self.header[layout.ROWS_USED] = 1
        self.header[layout.COUNT_MAX] = SCOPE_SESSIONS_MAX
        # A secret seed keeps clients from choosing ids that all fall into the same bucket.
        self.header[layout.SEED] = SystemRandom().getrandbits(63)
        self.header[layout.WRITER] = _signed(writer_id)
        self.header[layout.BLOCK_SIZE] = block_size
        self.header.view(np.float64)[layout.TTL] = ttl_s
        self.ttl_s = ttl_s
        self.number = 0
        """Number of the table in the directory, in the order of creation."""

    def __len__(self) -> int:
        return self._numbers[layout.COUNT]

    @property
    def address(self) -> int:
        """Address of the header, for the ledger."""
        return self.header.ctypes.data

    @property
    def n_leases(self) -> int:
        return self._numbers[layout.N_LEASES]

    def set_block_size(self, block_size: int) -> None:
        self.header[layout.BLOCK_SIZE] = block_size

    def let_versions_fall(self, from_ms: int) -> None:
        """Give new sessions versions that fall with time, until `raise_sequence`.

        from_ms: time of the core's clock at which versions would reach 0, in milliseconds
        """
        self.header[layout.FALLING_FROM] = from_ms

    def raise_sequence(self, sequence: int) -> None:
        """Let the versions made here from now on rise, above a sequence."""
        self.header[layout.FALLING_FROM] = 0
        known = int(self.header[layout.SEQUENCE]) & U64_MASK
        self.header[layout.SEQUENCE] = _signed(max(known, sequence))

    def limit_count(self, count_max: int) -> None:
        """Set the largest number of sessions; existing sessions stay."""
        self.header[layout.COUNT_MAX] = min(SCOPE_SESSIONS_MAX, count_max)

    def find_row(self, session_id: str, now: float) -> int:
        """Return the row of a session, 0 without such a session."""
        row: int = kernels.find_session(self.header, session_id.encode(), now)
        return row

    def find_state(self, session_id: str, now: float) -> SessionState | None:
        row = self.find_row(session_id, now)
        return self.read_row(row) if row else None

    def read_binding(self, row: int) -> SessionBinding:
        at, fields = row * layout.FIELDS, self.fields
        dp_rank = fields[at + layout.DP_RANK]
        version = BindingVersion(
            fields[at + layout.SEQUENCE_OF] & U64_MASK, fields[at + layout.WRITER_OF] & U64_MASK
        )
        return SessionBinding(
            fields[at + layout.WORKER_ID] & U64_MASK,
            None if dp_rank == layout.ANY_RANK else dp_rank,
            version,
            fields[at + layout.CONTEXT],
        )

    def read_row(self, row: int) -> SessionState:
        at, fields = row * layout.FIELDS, self.fields
        n_bytes, first = fields[at + layout.NAME_BYTES], row * layout.NAME_WORDS
        name = self._names[first : first + layout.NAME_WORDS].tobytes()[:n_bytes]
        return SessionState(
            row,
            name.decode(),
            self.read_binding(row),
            fields[at + layout.LEASES],
            self._times[at + layout.IDLE_SINCE],
            self._times[at + layout.BOUND_AT],
            fields[at + layout.TURNS],
            fields[at + layout.ORDER],
            fields[at + layout.STATE] == layout.FINAL,
        )

    def book_turn(
        self, session_id: str, rank: Rank, context_tokens: int, is_final: bool, now: float
    ) -> int:
        """Bind a session to the rank of a booking and take a lease.

        Return the row of the session, or TABLE_FULL.
        """
        name = session_id.encode()
        place = _signed(rank.worker_id), rank.dp_rank
        row: int = kernels.book_turn(self.header, name, place, context_tokens, is_final, now)
        return row

    def apply_binding(
        self, session_id: str, binding: SessionBinding, idle_since: float, now: float
    ) -> tuple[int, int]:
        """Apply a binding of a replica or a file; return the result and the row.

        A longer context is adopted unless the binding is older than the present binding.
        """
        dp_rank = layout.ANY_RANK if binding.dp_rank is None else binding.dp_rank
        found: tuple[int, int] = kernels.apply_binding(
            self.header,
            session_id.encode(),
            (np.uint64(binding.version.sequence), np.uint64(binding.version.writer_id)),
            (_signed(binding.worker_id), dp_rank),
            idle_since,
            now,
        )
        result, row = found
        at = row * layout.FIELDS + layout.CONTEXT
        if result in (kernels.CREATED, kernels.MOVED):
            self.fields[at] = binding.context_tokens
        elif result == kernels.RENEWED:
            self.fields[at] = max(self.fields[at], binding.context_tokens)
        return found

    def lease_row(self, row: int) -> None:
        """Take a lease for a reservation that a replica admitted."""
        kernels.lease_row(self.header, row)

    def move_binding(self, row: int, rank: Rank, now: float) -> None:
        """Bind a session to the rank to which a reservation of the session moved."""
        kernels.move_binding(self.header, row, rank.worker_id, rank.dp_rank, now)

    def set_slot(self, row: int, slot: int, version: int) -> None:
        """Note the slot of the rank of a session, for the fast path.

        version: version of the slot in the rank table
        """
        at = row * layout.FIELDS
        self.fields[at + layout.SLOT], self.fields[at + layout.SLOT_VERSION] = slot, version

    def forget_contexts(self, worker_id: int, dp_rank: int | None, at: float) -> None:
        """Let the sessions of a worker or rank without leases have no cache there.  O(rows)

        at: time of the clear; what was used later stays
        """
        used = self._rows[: self._numbers[layout.ROWS_USED]]
        cleared = (used[:, layout.WORKER_ID] == _signed(worker_id)) & (used[:, layout.LEASES] == 0)
        cleared &= used[:, layout.IDLE_SINCE].view(np.float64) <= at
        if dp_rank is not None:
            ranks = used[:, layout.DP_RANK]
            cleared &= (ranks == dp_rank) | (ranks == layout.ANY_RANK)
        used[cleared, layout.CONTEXT] = 0

    def raise_version(self, row: int, above: BindingVersion) -> None:
        """Give a session a version of this process above the given version."""
        kernels.raise_version(self.header, row, above.sequence)

    def is_live(self, row: int) -> bool:
        """Return whether a row still has a session, expired or not."""
        return self.fields[row * layout.FIELDS + layout.STATE] in (layout.LIVE, layout.FINAL)

    def end_session(self, row: int) -> None:
        """End a session at the request of a caller; leases end with the reservations."""
        kernels.end_by_caller(self.header, row)

    def expire_sessions(self, now: float, limit: int) -> int:
        """End up to `limit` sessions that were idle for too long; return the number."""
        ended: int = kernels.expire_sessions(self.header, now, limit)
        return ended

    def live_rows(self) -> npt.NDArray[np.int64]:
        """Return the rows of all sessions, int64[n], ascending."""
        states = self._rows[: self._numbers[layout.ROWS_USED], layout.STATE]
        return np.flatnonzero((states == layout.LIVE) | (states == layout.FINAL))

    def sum_parts(self, now: float) -> npt.NDArray[np.uint64]:
        """Return the sum of the fingerprints in each part of the table, uint64[N_PARTS].

        Sessions about to end are left out, since replicas do not end a session at the same time.
        """
        sums = np.zeros(N_PARTS, np.uint64)
        kernels.sum_fingerprints(self.header, now - self.lasting_s, sums)
        return sums

    @property
    def lasting_s(self) -> float:
        """Idle time up to which a session counts in sums and is sent to replicas."""
        return max(0.75 * self.ttl_s, self.ttl_s - END_MARGIN_S)

    @property
    def is_full(self) -> bool:
        return self._numbers[layout.COUNT] >= self._numbers[layout.COUNT_MAX]

    @property
    def n_rows(self) -> int:
        """Number of rows used so far, the work of a sum."""
        return self._numbers[layout.ROWS_USED]

    def part_of(self, row: int) -> int:
        """Return the part of the table to which a session belongs."""
        at = row * layout.FIELDS + layout.ID_HASH
        return (self.fields[at] & U64_MASK) >> (64 - layout.PART_BITS)

    def rows_after(self, row: int, limit: int, parts: int) -> list[int]:
        """Return up to `limit` rows of sessions behind a row.  O(rows)

        parts: mask of the parts of the table to look at
        """
        found = np.empty(limit, np.int64)
        n: int = kernels.list_sessions(self.header, row, np.uint64(parts), found)
        rows: list[int] = found[:n].tolist()
        return rows

    @property
    def counts(self) -> SessionCounts:
        numbers = self._numbers
        return SessionCounts(*(numbers[layout.N_CREATED + k] for k in range(7)))

    def check_invariants(self) -> None:
        """Check the invariants, for tests."""
        rows, numbers = self._rows, self._numbers
        live = self.live_rows().tolist()
        assert len(live) == len(self)
        used = rows[1 : numbers[layout.ROWS_USED]]
        has_lease = used[:, layout.STATE] != layout.FREE
        assert used[has_lease, layout.LEASES].sum() == self.n_leases
        assert (used[used[:, layout.STATE] == layout.ENDED, layout.LEASES] > 0).all()
        idle = list(self._iterate_idle())
        assert sorted(idle) == [row for row in live if not rows[row, layout.LEASES]]
        for row in live:
            found = self.read_row(row)
            # Before any time, so that no session counts as expired.
            assert self.find_row(found.session_id, -1e18) == row

    def _iterate_idle(self) -> Iterator[int]:
        """Iterate over the sessions without leases, the longest idle first, for tests."""
        row, before = self._numbers[layout.OLDEST_IDLE], 0
        while row:
            yield row
            assert self._rows[row, layout.OLDER_IDLE] == before
            before, row = row, int(self._rows[row, layout.NEWER_IDLE])
        assert self._numbers[layout.NEWEST_IDLE] == before


def _signed(number: int) -> int:
    """Return an unsigned 64-bit number as the signed number with the same bits."""
    return number - (1 << 64) if number >> 63 else number
