"""Player of capacity cases: the ranks' capacity, and the level of degradation that suffices."""

from collections.abc import Iterator
from typing import Any

from select_service.core.health.capacity_estimate import (
    RankCapacity,
    RequestMeanValues,
    ServiceObjective,
    estimate_capacity,
)
from select_service.core.health.degradation.degradation_levels import level_of
from tests.vectors.differences import Difference, differences


def play(case: dict[str, Any]) -> Iterator[Difference]:
    """Compare the parts, the ratio and the level without hysteresis."""
    ranks = [RankCapacity(**rank) for rank in case["ranks"]]
    found = estimate_capacity(
        ranks, ServiceObjective(**case["slo"]), RequestMeanValues(**case["load"])
    )
    yield from differences(case["result"], found._asdict() | {"level": level_of(found.ratio)})
