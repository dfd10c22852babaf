"""Status of a shared cache, for operators, metrics and the doctor."""

from collections.abc import Mapping
from typing import NamedTuple

from select_service.schemas.shared_caches import CacheKind, SharedOutcome


class SharedCacheStatus(NamedTuple):
    """Status of the shared cache of a model.

    outcomes: look-ups by outcome
    found_tokens: leading tokens found by all look-ups
    waited_s: time for which requests waited for look-ups, s
    in_flight: look-ups that run now, also after their request went on without them
    last_error: reason of the latest failed look-up; None before one
    is_answering: whether the latest look-up was answered in time; None before the first
    changed_s: time since `is_answering` changed, s
    error_s: time since `last_error`, s
    request_s: moving mean of the time of a request to the cache, s; None before an answer
    waited: look-ups for which requests waited
    """

    model_name: str
    kind: CacheKind
    url: str
    outcomes: Mapping[SharedOutcome, int]
    found_tokens: int
    waited_s: float
    in_flight: int
    is_open: bool
    last_error: str | None
    is_answering: bool | None = None
    changed_s: float | None = None
    error_s: float | None = None
    request_s: float | None = None
    waited: int = 0

    @property
    def hits(self) -> int:
        return self.outcomes.get("hit", 0)

    @property
    def answered(self) -> int:
        """Number of look-ups that were answered in time."""
        return self.hits + self.outcomes.get("miss", 0)
