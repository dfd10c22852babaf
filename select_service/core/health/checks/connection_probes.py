"""Queue of endpoints to which a plain connection is tried, because their ranks refused connections.

A connection costs the engine nothing. A killed engine that listens again is found within seconds,
however long its circuit breaker stays open; a canary then decides whether the rank serves.
"""

IN_FLIGHT_MAX = 16
"""Maximum number of connections tried at a time."""


class ConnectionProbes:
    """Queue with every endpoint at most once; all methods are O(1)."""

    def __init__(self) -> None:
        self._waiting: dict[str, None] = {}
        self._in_flight: set[str] = set()

    def request_probe(self, endpoint: str) -> None:
        """Queue an endpoint, unless it is queued or being tried."""
        if endpoint not in self._in_flight:
            self._waiting[endpoint] = None

    def take_next(self) -> str | None:
        """Return an endpoint to try now, the longest waiting first; None if none may be tried."""
        if not self._waiting or len(self._in_flight) >= IN_FLIGHT_MAX:
            return None
        endpoint = next(iter(self._waiting))
        del self._waiting[endpoint]
        self._in_flight.add(endpoint)
        return endpoint

    def end_probe(self, endpoint: str) -> None:
        """Remove an endpoint that was tried."""
        self._in_flight.discard(endpoint)

    def check_invariants(self) -> None:
        """Assert internal consistency; used by tests."""
        assert len(self._in_flight) <= IN_FLIGHT_MAX
        assert self._in_flight.isdisjoint(self._waiting)
