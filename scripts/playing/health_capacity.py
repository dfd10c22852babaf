"""What ranks can carry, and the level that is enough."""

from collections.abc import Iterator
from typing import Any

from scripts.playing.differences import Difference, differences
from select_service.core.health.capacity import LoadMeans, RankCapacity, Slo, capacity
from select_service.core.health.degradation import level_of


def play(case: dict[str, Any]) -> Iterator[Difference]:
    """The parts, the ratio and the level without hysteresis."""
    ranks = [RankCapacity(**rank) for rank in case["ranks"]]
    found = capacity(ranks, Slo(**case["slo"]), LoadMeans(**case["load"]))
    yield from differences(case["result"], found._asdict() | {"level": level_of(found.ratio)})
