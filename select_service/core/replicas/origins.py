"""Which replicas have been heard of lately, by router id.

A replica that sends digests answers for the reservations that it admitted.  For one that does not
(another implementation, or a process that has ended) nobody does, and as long as it is silent the
others may compare among themselves what they know of it.
"""

from collections import OrderedDict
from typing import NamedTuple

ORIGINS_MAX = 1024
"""Router ids that are remembered."""
SILENT_S = 10.0
"""After so long without a digest a replica no longer answers for itself; after so long without an
event its reservations no longer change while they are compared."""


class _Heard(NamedTuple):
    digest_at: float | None
    event_at: float | None


class Origins:
    """Least recently heard first."""

    def __init__(self, own: int) -> None:
        self._own = own
        self._heard: OrderedDict[int, _Heard] = OrderedDict()

    def heard_event(self, router_id: int, now: float) -> None:
        old = self._heard.get(router_id)
        self._put(router_id, _Heard(None if old is None else old.digest_at, now))

    def heard_digest(self, router_id: int, now: float) -> None:
        old = self._heard.get(router_id)
        self._put(router_id, _Heard(now, None if old is None else old.event_at))

    def is_orphan(self, router_id: int, now: float) -> bool:
        """Does nobody answer for the reservations of this replica, and do they stand still?"""
        if router_id == self._own:
            return False
        heard = self._heard.get(router_id)
        times = () if heard is None else (heard.digest_at, heard.event_at)
        return all(at is None or at + SILENT_S <= now for at in times)

    def alive(self, now: float) -> tuple[int, ...]:
        """The other replicas whose digests come, by router id."""
        times = ((name, heard.digest_at) for name, heard in self._heard.items())
        some = (name for name, at in times if at is not None and now < at + SILENT_S)
        return tuple(sorted(some))

    def is_any_alive(self, now: float) -> bool:
        """Are there others whose digests come?"""
        times = (heard.digest_at for heard in self._heard.values())
        return any(at is not None and now < at + SILENT_S for at in times)

    def _put(self, router_id: int, heard: _Heard) -> None:
        self._heard[router_id] = heard
        self._heard.move_to_end(router_id)
        if len(self._heard) > ORIGINS_MAX:
            self._heard.popitem(last=False)

    def check_invariants(self) -> None:
        """For tests."""
        assert len(self._heard) <= ORIGINS_MAX
