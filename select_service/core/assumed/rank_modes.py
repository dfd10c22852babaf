"""Source of a rank's index: KV events, or bookings.

registered `index`   with KV events on                 with KV events off
events               events                            none
assumed              assumed                           assumed
auto (the default)   events; assumed while silent      assumed, or none by --no-assumed-index

Beside events, bookings are assumed for a short time if `beside_events_s` is given.
"""

from math import inf
from typing import Literal, NamedTuple, TypeAlias

from select_service.core.assumed.assumed_blocks import AssumedRank
from select_service.core.assumed.assumed_size import AssumedSize

IndexSource: TypeAlias = Literal["events", "assumed", "none"]
"""Source of a rank's index; `none` leaves only the prompts of live reservations."""


class AssumptionRules(NamedTuple):
    """Settings of assumed blocks.

    assumes_without_events: whether bookings of ranks without events are assumed by default
    ttl_s: time after the last use in which such a rank holds a block, seconds; infinite: no limit
    beside_events_s: such a time beside events; None means that nothing is assumed beside events
    silent_after_s: time without events of a rank with requests after which bookings are assumed,
    seconds; 0 means never
    """

    use_kv_events: bool = True
    assumes_without_events: bool = False
    ttl_s: float = inf
    beside_events_s: float | None = None
    silent_after_s: float = 0.0

    def source_of(self, index: str | None) -> IndexSource:
        """Return the source of the index of a rank with this registered `index`."""
        if index == "assumed":
            return "assumed"
        if self.use_kv_events:
            return "events"
        return "assumed" if index != "events" and self.assumes_without_events else "none"

    def make_rank(
        self, source: IndexSource, total_kv_blocks: int | None, block_size: int
    ) -> AssumedRank | None:
        """Return how bookings of a rank are assumed; None means not at all."""
        size = AssumedSize(total_kv_blocks, block_size)
        if source == "assumed":
            return AssumedRank(size, self.ttl_s)
        if source == "events" and self.beside_events_s is not None:
            return AssumedRank(size, self.beside_events_s, is_beside_events=True)
        return None
