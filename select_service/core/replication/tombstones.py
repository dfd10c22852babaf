"""Tombstones: memory of reservations that ended or are not booked here.

Events of different replicas come over different connections, so an ending may overtake the
admission, and a list of reservations may be older than an ending. Three kinds are kept, each for a
bounded time and number:

* `freed`: the reservation was booked here and ended. Used for comparison with lists. A later
  admission counts as a new reservation of the same id.
* `freed_early`: the reservation was freed before its admission arrived; the admission is ignored.
* `prefilled_early`: the prefill ended before the admission arrived.
"""

from collections import OrderedDict
from typing import Literal, NamedTuple

TOMBSTONES_MAX = 65_536
EXPIRED_PER_TURN_MAX = 2048
TOMBSTONE_S_MAX = 600.0
"""Time for which an ending overrides lists of reservations, s."""
EARLY_S_MAX = 60.0
"""Maximum delay of an admission behind an event that overtook it, s."""

TombstoneKind = Literal["freed", "freed_early", "prefilled_early"]


class ReservationTombstone(NamedTuple):
    """Tombstone.

    by: replica that sent the ending
    """

    kind: TombstoneKind
    at: float
    by: int


class Tombstones:
    """Tombstones, oldest first. O(1) per call."""

    def __init__(self) -> None:
        self._by_id: OrderedDict[str, ReservationTombstone] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    def record_freed(self, reservation_id: str, by: int, now: float) -> None:
        """Record the end of a reservation that was booked here."""
        self._store_tombstone(reservation_id, ReservationTombstone("freed", now, by))

    def record_freed_early(self, reservation_id: str, by: int, now: float) -> None:
        """Record the end of a reservation that is not booked here: early, or repeated."""
        # A repeated Freed must not turn into freed_early, which would block a new use of the id.
        if self._live_kind(reservation_id, now) != "freed":
            self._store_tombstone(reservation_id, ReservationTombstone("freed_early", now, by))

    def record_prefilled_early(self, reservation_id: str, by: int, now: float) -> None:
        """Record the prefill end of a reservation that is not booked here; an ending takes
        precedence.
        """
        if self._live_kind(reservation_id, now) is None:
            self._store_tombstone(reservation_id, ReservationTombstone("prefilled_early", now, by))

    def early_ending_of(self, reservation_id: str, now: float) -> TombstoneKind | None:
        """Return the kind that an admission at this time has to respect, or None."""
        kind = self._live_kind(reservation_id, now)
        return None if kind == "freed" else kind

    def ending_of(self, reservation_id: str, now: float) -> ReservationTombstone | None:
        """Return the recorded ending, or None."""
        ending = self._by_id.get(reservation_id)
        if ending is None or ending.kind == "prefilled_early" or ending.at + TOMBSTONE_S_MAX <= now:
            return None
        return ending

    def was_prefilled(self, reservation_id: str, now: float) -> bool:
        return self._live_kind(reservation_id, now) == "prefilled_early"

    def remove_tombstone(self, reservation_id: str) -> None:
        """Remove the tombstone of a reservation that is booked: the ending belonged to an earlier
        reservation.
        """
        self._by_id.pop(reservation_id, None)

    def _live_kind(self, reservation_id: str, now: float) -> TombstoneKind | None:
        ending = self._by_id.get(reservation_id)
        if ending is None:
            return None
        # Early endings block admissions of the id, and must expire much sooner.
        age_s_max = TOMBSTONE_S_MAX if ending.kind == "freed" else EARLY_S_MAX
        return ending.kind if ending.at + age_s_max > now else None

    def _store_tombstone(self, reservation_id: str, ending: ReservationTombstone) -> None:
        self._by_id[reservation_id] = ending
        # Keeps insertion order equal to time order, which `drop_expired` relies on.
        self._by_id.move_to_end(reservation_id)
        if len(self._by_id) > TOMBSTONES_MAX:
            self._by_id.popitem(last=False)

    def drop_expired(self, now: float) -> bool:
        """Drop expired tombstones, limited per turn; return whether more are left."""
        for _ in range(EXPIRED_PER_TURN_MAX):
            reservation_id, ending = next(iter(self._by_id.items()), (None, None))
            if reservation_id is None or ending is None or ending.at + TOMBSTONE_S_MAX > now:
                return False
            del self._by_id[reservation_id]
        return True

    def check_invariants(self) -> None:
        """Assert internal consistency; used by tests."""
        times = [ending.at for ending in self._by_id.values()]
        assert times == sorted(times)
        assert len(times) <= TOMBSTONES_MAX
