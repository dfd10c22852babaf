"""How long canaries have waited for each other.

Ranks behind one endpoint can share a processor: those that are asked together are slower than each
of them alone, and it is us who made them so.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic


class Visit:
    """waited_s: until now, if all that were there had an equal part of the endpoint's time"""

    __slots__ = ("_company", "endpoint", "waited_s")

    def __init__(self, company: "Company", endpoint: str) -> None:
        self._company = company
        self.endpoint = endpoint
        self.waited_s = 0.0

    def __enter__(self) -> "Visit":
        self._company.come(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._company.leave(self)


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

    def visit(self, endpoint: str) -> Visit:
        """To be entered with the request, and left with the answer."""
        return Visit(self, endpoint)

    def come(self, visit: Visit) -> None:
        """One more is there."""
        now = self._clock()
        there = self._endpoints.get(visit.endpoint)
        if there is None:
            there = self._endpoints[visit.endpoint] = _Endpoint(now)
        there.pass_time(now)
        there.visits.append(visit)

    def leave(self, visit: Visit) -> None:
        """One that has come."""
        there = self._endpoints[visit.endpoint]
        there.pass_time(self._clock())
        there.visits.remove(visit)
        if not there.visits:
            del self._endpoints[visit.endpoint]
