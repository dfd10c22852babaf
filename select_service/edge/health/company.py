"""How long canaries have waited for each other.

Ranks behind one endpoint can share a processor: those that are asked together are slower than each
of them alone, and it is us who made them so.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic


@dataclass(slots=True, eq=False)
class Visit:
    """waited_s: until now, if all that were there had an equal part of the endpoint's time"""

    waited_s: float = 0.0


@dataclass(slots=True)
class _Endpoint:
    """changed_at: when somebody came or went"""

    changed_at: float
    visits: list[Visit] = field(default_factory=list)

    def pass_time(self, now: float) -> None:
        """Nobody has come or gone until now."""
        if self.visits:
            waited_s = (now - self.changed_at) * (1.0 - 1.0 / len(self.visits))
            for visit in self.visits:
                visit.waited_s += waited_s
        self.changed_at = now


class Company:
    """Canaries that are under way."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._endpoints: dict[str, _Endpoint] = {}

    @contextlib.contextmanager
    def visit(self, endpoint: str) -> Iterator[Visit]:
        """From the request to the answer."""
        now, visit = self._clock(), Visit()
        there = self._endpoints.setdefault(endpoint, _Endpoint(now))
        there.pass_time(now)
        there.visits.append(visit)
        try:
            yield visit
        finally:
            there.pass_time(self._clock())
            there.visits.remove(visit)
            if not there.visits:
                del self._endpoints[endpoint]
