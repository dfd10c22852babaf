"""Condition of a rank as autoscalers and reports receive it."""

from collections.abc import Callable
from typing import NamedTuple

from select_service.core.identity import Rank


class RankCondition(NamedTuple):
    """Health of a rank.

    state: name of the health state
    cause: cause of the state, `operator` for a drain; None while healthy
    out_s: seconds since the rank was taken out; None while it serves
    is_spare: without requests until it replaces a failed rank
    """

    state: str
    cause: str | None = None
    out_s: float | None = None
    is_spare: bool = False


ConditionOf = Callable[[Rank, float], RankCondition | None]
"""Function from a rank and the time to its condition; None means unknown."""
