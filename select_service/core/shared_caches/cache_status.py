"""Status of a shared cache, for metrics and the doctor."""

from collections.abc import Mapping
from typing import NamedTuple


class SharedCacheStatus(NamedTuple):
    """Status of the shared cache of a model.

    outcomes: look-ups by outcome
    found_tokens: leading tokens found by all look-ups
    waited_s: time for which requests waited for look-ups, s
    in_flight: look-ups that run now, also after their request went on without them
    last_error: reason of the latest failed look-up; None before one
    """

    model_name: str
    kind: str
    url: str
    outcomes: Mapping[str, int]
    found_tokens: int
    waited_s: float
    in_flight: int
    is_open: bool
    last_error: str | None
