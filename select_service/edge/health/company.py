"""How many canaries an endpoint has at the same time.

Ranks behind one endpoint can share a processor: those that are asked together are slower than each
of them alone, and it is us who made them so.
"""

import contextlib
from collections.abc import Iterator


class Visit:
    """others: so many at most were there at the same time"""

    __slots__ = ("others",)

    def __init__(self, others: int) -> None:
        self.others = others

    @property
    def waited_part(self) -> float:
        """Of the time of an answer, if all had the same part of the endpoint's."""
        return self.others / (1.0 + self.others)


class Company:
    """Canaries that are under way."""

    def __init__(self) -> None:
        self._visits: dict[str, list[Visit]] = {}

    @contextlib.contextmanager
    def visit(self, endpoint: str) -> Iterator[Visit]:
        """From the request to the answer."""
        visits = self._visits.setdefault(endpoint, [])
        visit = Visit(len(visits))
        visits.append(visit)
        for other in visits:
            other.others = max(other.others, len(visits) - 1)
        try:
            yield visit
        finally:
            visits.remove(visit)
            if not visits:
                del self._visits[endpoint]
