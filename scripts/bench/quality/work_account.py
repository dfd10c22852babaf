"""Account of the work left on each rank, from own reservations, events of peers and KV events.

Follows the ledger of a real selector, so that every end of a prefill there is an end here. All in
tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from indexer.hashing.block_hashing import Hashes
from select_service.core.load.ledger import Cause
from select_service.core.load.new_reservation import NewReservation
from select_service.core.load.reservation_view import ReservationView
from select_service.core.registry.fleet.partition import Partition

REPORTS_REMEMBERED = 64


@dataclass(slots=True)
class BookedPrefill:
    """Work of a reservation on a rank that is not known to be finished.

    hashes: block hashes of the prompt, None for reservations of peers;  work: tokens
    before: cached blocks at the reservation;  told: finished tokens, as reported by a peer
    """

    hashes: Hashes | None
    work: float
    before: int
    told: float = 0.0


class WorkAccount:
    def __init__(
        self, partition: Partition, n_ranks: int, block_tokens: int, *, progress: bool
    ) -> None:
        """progress: whether the finished part of the oldest prefill of a rank is subtracted"""
        self.peers_work: dict[str, float] = {}
        """Own work of peers' reservations from their events; otherwise the booked tokens."""
        self.upcoming: Sequence[BookedPrefill] = ()
        """Own work by rank of the reservation that is about to be made."""
        self.reported = 1.0
        """Share of reported ends among the last hundred or so prefills that ended."""
        self._partition, self._size = partition, block_tokens
        self._has_progress = progress
        self._prefills: list[dict[str, BookedPrefill]] = [{} for _ in range(n_ranks)]
        self._booked = [0.0] * n_ranks
        self._done = [0.0] * n_ranks
        self._stale = [False] * n_ranks

    # Queries

    def total_work(self, rank: int) -> float:
        """Return the work of the rank that is not known to be finished."""
        return self._booked[rank]

    def unfinished_work(self, rank: int) -> float:
        """Return the unfinished work of the rank."""
        return self._booked[rank] - self.finished_work(rank)

    def finished_work(self, rank: int) -> float:
        """Return the finished part of its oldest prefill."""
        if self._stale[rank]:
            self._stale[rank] = False
            looks = self._has_progress and bool(self._prefills[rank])
            self._done[rank] = self._progress(rank) if looks else 0.0
        return self._done[rank]

    def _progress(self, rank: int) -> float:
        """Return the computed tokens of the oldest prefill, according to events."""
        oldest = next(iter(self._prefills[rank].values()))
        if oldest.hashes is None:
            return min(oldest.work, oldest.told)
        there = int(self._partition.index.match(oldest.hashes)[rank, -1])
        return min(oldest.work, max(0.0, self._size * float(there - oldest.before)))

    def progress(self) -> Iterator[tuple[str, float]]:
        """Yield the progress of the oldest own prefills, for peers."""
        for rank, prefills in enumerate(self._prefills):
            for name, oldest in prefills.items():
                if oldest.hashes is not None:
                    yield name, self._progress(rank)
                break

    # Events

    def index_changed(self, rank: int) -> None:
        self._stale[rank] = True

    def receive_progress(self, name: str, done: float) -> None:
        """Receive the progress of a peer's prefill."""
        for rank, prefills in enumerate(self._prefills):
            if name in prefills:
                prefills[name].told = max(prefills[name].told, done)
                self._stale[rank] = True

    # Follower of the ledger

    def on_booked(self, booking: NewReservation, cause: Cause, now: float) -> None:
        name, rank = booking.reservation_id, booking.slot
        if self.upcoming:
            prefill, self.upcoming = self.upcoming[rank], ()
        else:
            work = self.peers_work.get(name, float(max(1, booking.prefill_tokens)))
            prefill = BookedPrefill(None, work, 0)
        if booking.is_prefilling:
            self._stale[rank] |= not self._prefills[rank]
            self._prefills[rank][name] = prefill
            self._booked[rank] += prefill.work

    def on_prefill_completed(self, booking: ReservationView, cause: Cause, now: float) -> None:
        self._end(booking, 1.0)

    def on_released(self, booking: ReservationView, cause: Cause, now: float) -> None:
        self._end(booking, 0.0)

    def _end(self, booking: ReservationView, reported: float) -> None:
        rank = booking.slot
        ended = self._prefills[rank].pop(booking.reservation_id, None)
        if ended is not None:
            self._stale[rank] = True
            self._booked[rank] -= ended.work
            self.reported += (reported - self.reported) / REPORTS_REMEMBERED

    def check_invariants(self) -> None:
        """Recompute the incremental state.  For tests."""
        for booked, prefills in zip(self._booked, self._prefills, strict=True):
            assert abs(booked - sum(prefill.work for prefill in prefills.values())) < 1e-3
        assert all(self.unfinished_work(rank) >= -1e-3 for rank in range(len(self._booked)))
