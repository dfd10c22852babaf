"""How much work each rank has left, as one selector knows it: what it booked, heard and saw.

Follows the ledger of a real selector, so that whatever ends a prefill there ends it here.  All in
tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from indexer.hashing.hashes import Hashes
from select_service.core.fleet.partition import Partition
from select_service.core.load.booking import NewBooking
from select_service.core.load.held_booking import Booking
from select_service.core.load.ledger import Cause
from select_service.replaying.hardware import BLOCK_TOKENS

REPORTS_REMEMBERED = 64


@dataclass(slots=True)
class Prefill:
    """Work booked on a rank that is not known to be over.

    hashes: of the prompt's blocks, None for what peers booked;  work: tokens
    before: blocks of the prompt that the rank had when it was booked;  told: tokens done, by a peer
    """

    hashes: Hashes | None
    work: float
    before: int
    told: float = 0.0


class WorkAccount:
    def __init__(self, partition: Partition, n_ranks: int, *, progress: bool) -> None:
        """progress: is what the oldest prefill of a rank has done taken off?"""
        self.peers_work: dict[str, float] = {}
        """Own work of reservations of peers, as their events say it; without, what was booked."""
        self.upcoming: Sequence[Prefill] = ()
        """By rank, of what is about to be booked here on one of them."""
        self.reported = 1.0
        """Share of ended prefills that the caller reported, of the last hundred or so."""
        self._partition = partition
        self._has_progress = progress
        self._prefills: list[dict[str, Prefill]] = [{} for _ in range(n_ranks)]
        self._booked = [0.0] * n_ranks
        self._done = [0.0] * n_ranks
        self._stale = [False] * n_ranks

    # --- what is asked

    def work(self, rank: int) -> float:
        """Work of the rank that is not known to be over."""
        return self._booked[rank]

    def left(self, rank: int) -> float:
        """Work of the rank that is not done."""
        return self._booked[rank] - self.done(rank)

    def done(self, rank: int) -> float:
        """Work of its oldest prefill that is done."""
        if self._stale[rank]:
            self._stale[rank] = False
            looks = self._has_progress and bool(self._prefills[rank])
            self._done[rank] = self._progress(rank) if looks else 0.0
        return self._done[rank]

    def _progress(self, rank: int) -> float:
        """Tokens of the oldest prefill that the rank has computed, as events say."""
        oldest = next(iter(self._prefills[rank].values()))
        if oldest.hashes is None:
            return min(oldest.work, oldest.told)
        there = int(self._partition.index.match(oldest.hashes)[rank, -1])
        return min(oldest.work, max(0.0, BLOCK_TOKENS * float(there - oldest.before)))

    def progress(self) -> Iterator[tuple[str, float]]:
        """Of the oldest prefills of ranks, where they are our own: what peers are told."""
        for rank, prefills in enumerate(self._prefills):
            for name, oldest in prefills.items():
                if oldest.hashes is not None:
                    yield name, self._progress(rank)
                break

    # --- what is seen and heard

    def index_changed(self, rank: int) -> None:
        self._stale[rank] = True

    def told(self, name: str, done: float) -> None:
        """A peer says how far a prefill of its own is."""
        for rank, prefills in enumerate(self._prefills):
            if name in prefills:
                prefills[name].told = max(prefills[name].told, done)
                self._stale[rank] = True

    # --- as a follower of the ledger

    def booked(self, booking: NewBooking, cause: Cause, now: float) -> None:
        name, rank = booking.reservation_id, booking.slot
        if self.upcoming:
            prefill, self.upcoming = self.upcoming[rank], ()
        else:
            work = self.peers_work.get(name, float(max(1, booking.prefill_tokens)))
            prefill = Prefill(None, work, 0)
        if booking.prefilling:
            self._stale[rank] |= not self._prefills[rank]
            self._prefills[rank][name] = prefill
            self._booked[rank] += prefill.work

    def prefill_completed(self, booking: Booking, cause: Cause, now: float) -> None:
        self._end(booking, 1.0)

    def released(self, booking: Booking, cause: Cause, now: float) -> None:
        self._end(booking, 0.0)

    def _end(self, booking: Booking, reported: float) -> None:
        rank = booking.slot
        ended = self._prefills[rank].pop(booking.reservation_id, None)
        if ended is not None:
            self._stale[rank] = True
            self._booked[rank] -= ended.work
            self.reported += (reported - self.reported) / REPORTS_REMEMBERED

    def check_invariants(self) -> None:
        """For tests."""
        for booked, prefills in zip(self._booked, self._prefills, strict=True):
            assert abs(booked - sum(prefill.work for prefill in prefills.values())) < 1e-3
        assert all(self.left(rank) >= -1e-3 for rank in range(len(self._booked)))
