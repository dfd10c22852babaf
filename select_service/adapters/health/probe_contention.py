"""Measurement of the contention between canaries of an endpoint.

Ranks behind one endpoint can share a processor: concurrent canaries slow each other down, which
must not count against the engine.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic


class ContentionSpan:
    """Context of a canary request.

    waited_s: seconds lost to other canaries, assuming equal shares of the endpoint
    """

    __slots__ = ("_company", "endpoint", "waited_s")

    def __init__(self, company: "ProbeContention", endpoint: str) -> None:
        self._company = company
        self.endpoint = endpoint
        self.waited_s = 0.0

    def __enter__(self) -> "ContentionSpan":
        self._company.enter(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._company.exit(self)


@dataclass(slots=True)
class _EndpointContention:
    """Running canaries of an endpoint.

    changed_at: time of the last start or end of a canary
    """

    changed_at: float
    spans: list[ContentionSpan] = field(default_factory=list)

    def account_time(self, now: float) -> None:
        """Account for the time since the last change; the set of canaries was constant."""
        if self.spans:
            # With n concurrent canaries each has 1/n of the endpoint, so it waits for the rest of
            # the time.
            waited_s = (now - self.changed_at) * (1.0 - 1.0 / len(self.spans))
            for visit in self.spans:
                visit.waited_s += waited_s
        self.changed_at = now


class ProbeContention:
    """Running canaries by endpoint."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._endpoints: dict[str, _EndpointContention] = {}

    def start_span(self, endpoint: str) -> ContentionSpan:
        """Return a context to enter with the request and leave with the response."""
        return ContentionSpan(self, endpoint)

    def enter(self, visit: ContentionSpan) -> None:
        """Register a started canary."""
        now = self._clock()
        there = self._endpoints.get(visit.endpoint)
        if there is None:
            there = self._endpoints[visit.endpoint] = _EndpointContention(now)
        there.account_time(now)
        there.spans.append(visit)

    def exit(self, visit: ContentionSpan) -> None:
        """Remove a finished canary."""
        there = self._endpoints[visit.endpoint]
        there.account_time(self._clock())
        there.spans.remove(visit)
        if not there.spans:
            del self._endpoints[visit.endpoint]
