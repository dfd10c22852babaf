"""Tombstones: what is remembered of reservations that are not booked here.

Events of different replicas come over different connections, so the one that ends a reservation may
overtake the one that admits it, and a list of reservations may be older than an ending that has
been seen.  Three things are remembered of an id, each for a bounded time and number:

* `freed`: it was booked here and has ended.  Kept for comparing with lists; an admission that
  comes later is taken for a new reservation of the same name.
* `freed_early`: it was freed before its admission came, which is therefore ignored.
* `prefilled_early`: its prefill was over before its admission came.
"""

from collections import OrderedDict
from typing import Literal, NamedTuple

ENDINGS_MAX = 65_536
FORGOTTEN_PER_TURN_MAX = 2048
ENDING_S_MAX = 600.0
"""How long an ending is held against a list of reservations."""
EARLY_S_MAX = 60.0
"""How long an admission may be late and still meet the event that overtook it."""

Kind = Literal["freed", "freed_early", "prefilled_early"]


class Ending(NamedTuple):
    """by: the replica that said so."""

    kind: Kind
    at: float
    by: int


class Endings:
    """Least recent first.  O(1) per call."""

    def __init__(self) -> None:
        self._by_id: OrderedDict[str, Ending] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    def freed(self, reservation_id: str, by: int, now: float) -> None:
        """A reservation that was booked here has ended."""
        self._put(reservation_id, Ending("freed", now, by))

    def freed_unknown(self, reservation_id: str, by: int, now: float) -> None:
        """Something was freed that is not booked here: early, or for a second time."""
        if self._kind(reservation_id, now) != "freed":
            self._put(reservation_id, Ending("freed_early", now, by))

    def prefilled_unknown(self, reservation_id: str, by: int, now: float) -> None:
        """The prefill of something that is not booked here is over; an ending says more."""
        if self._kind(reservation_id, now) is None:
            self._put(reservation_id, Ending("prefilled_early", now, by))

    def met_by_admission(self, reservation_id: str, now: float) -> Kind | None:
        """What an admission that comes now has to respect."""
        kind = self._kind(reservation_id, now)
        return None if kind == "freed" else kind

    def ending_of(self, reservation_id: str, now: float) -> Ending | None:
        """How it was seen to end, if that is remembered."""
        ending = self._by_id.get(reservation_id)
        if ending is None or ending.kind == "prefilled_early" or ending.at + ENDING_S_MAX <= now:
            return None
        return ending

    def was_prefilled(self, reservation_id: str, now: float) -> bool:
        return self._kind(reservation_id, now) == "prefilled_early"

    def forget(self, reservation_id: str) -> None:
        """It is booked: whatever ended was another one of the same name."""
        self._by_id.pop(reservation_id, None)

    def _kind(self, reservation_id: str, now: float) -> Kind | None:
        ending = self._by_id.get(reservation_id)
        if ending is None:
            return None
        age_s_max = ENDING_S_MAX if ending.kind == "freed" else EARLY_S_MAX
        return ending.kind if ending.at + age_s_max > now else None

    def _put(self, reservation_id: str, ending: Ending) -> None:
        self._by_id[reservation_id] = ending
        self._by_id.move_to_end(reservation_id)
        if len(self._by_id) > ENDINGS_MAX:
            self._by_id.popitem(last=False)

    def tick(self, now: float) -> bool:
        """Forget what is too old to matter, as much as one turn may.  Returns whether more is."""
        for _ in range(FORGOTTEN_PER_TURN_MAX):
            reservation_id, ending = next(iter(self._by_id.items()), (None, None))
            if reservation_id is None or ending is None or ending.at + ENDING_S_MAX > now:
                return False
            del self._by_id[reservation_id]
        return True

    def check_invariants(self) -> None:
        """For tests."""
        times = [ending.at for ending in self._by_id.values()]
        assert times == sorted(times)
        assert len(times) <= ENDINGS_MAX
