"""Liveness of replicas, by router id.

A replica that sends digests answers for the reservations it admitted. A replica that sends none
(another implementation, or an ended process) is an orphaned origin: while silent, its reservations
are compared among the other replicas.
"""

from collections import OrderedDict
from typing import NamedTuple

REPLICAS_MAX = 1024
"""Maximum number of remembered router ids."""
LIVENESS_TIMEOUT_S = 10.0
"""Time without a digest after which a replica no longer answers for itself, s.

Also the time without an event after which its reservations count as stable for comparison.
"""


class _LastMessages(NamedTuple):
    digest_at: float | None
    event_at: float | None


class ReplicaLiveness:
    """Latest messages of each replica, least recent first."""

    def __init__(self, own: int) -> None:
        self._own = own
        self._last_messages: OrderedDict[int, _LastMessages] = OrderedDict()

    def record_event(self, router_id: int, now: float) -> None:
        old = self._last_messages.get(router_id)
        self._store_times(router_id, _LastMessages(None if old is None else old.digest_at, now))

    def record_digest(self, router_id: int, now: float) -> None:
        old = self._last_messages.get(router_id)
        self._store_times(router_id, _LastMessages(now, None if old is None else old.event_at))

    def is_orphan(self, router_id: int, now: float) -> bool:
        """Return whether no live replica answers for these reservations and they no longer
        change.
        """
        if router_id == self._own:
            return False
        heard = self._last_messages.get(router_id)
        times = () if heard is None else (heard.digest_at, heard.event_at)
        return all(at is None or at + LIVENESS_TIMEOUT_S <= now for at in times)

    def live_replicas(self, now: float) -> tuple[int, ...]:
        """Return the sorted router ids of other replicas with recent digests."""
        times = ((name, heard.digest_at) for name, heard in self._last_messages.items())
        some = (name for name, at in times if at is not None and now < at + LIVENESS_TIMEOUT_S)
        return tuple(sorted(some))

    def is_any_alive(self, now: float) -> bool:
        """Return whether any other replica sends digests."""
        times = (heard.digest_at for heard in self._last_messages.values())
        return any(at is not None and now < at + LIVENESS_TIMEOUT_S for at in times)

    def _store_times(self, router_id: int, last_messages: _LastMessages) -> None:
        self._last_messages[router_id] = last_messages
        self._last_messages.move_to_end(router_id)
        if len(self._last_messages) > REPLICAS_MAX:
            self._last_messages.popitem(last=False)

    def check_invariants(self) -> None:
        """Assert internal consistency; used by tests."""
        assert len(self._last_messages) <= REPLICAS_MAX
