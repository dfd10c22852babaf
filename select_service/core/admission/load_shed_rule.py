"""Load-shedding rule of a model with ranks unable to keep the promised latency.

Independent of the operators' shed tier: the stricter of the two applies.
"""

from typing import NamedTuple

from select_service.base.errors import CapacityShed, ModelDegraded

DEGRADED_RETRY_AFTER_S = 30
"""Retry-After of degraded models, seconds; a fixed number, as the return of ranks is
unpredictable.
"""


class LoadShedRule(NamedTuple):
    """Load-shedding rule of a model.

    shed_from:     highest shed tier, 0 for the highest of all; None means no tier
    refuses_all:       whether new and waiting requests are refused
    batch_share:   factor of batch budgets and busy thresholds
    latency_share: factor of queue timeouts
    """

    level: int = 0
    shed_from: int | None = None
    refuses_all: bool = False
    batch_share: float = 1.0
    latency_share: float = 1.0

    def sheds_tier(self, tier: int) -> bool:
        """Return whether a tier is shed, 0 for the highest."""
        return self.refuses_all or (self.shed_from is not None and tier >= self.shed_from)

    def make_error(self, shed: CapacityShed) -> CapacityShed | ModelDegraded:
        """Return the error of a refused request.

        shed: error to use when only the tier is shed
        """
        # A shed tier keeps its own error, which operators may have caused as well.
        if not self.refuses_all:
            return shed
        error = ModelDegraded(
            f"degraded: level={self.level}, new requests are refused for this model"
        )
        error.retry_after_s = DEGRADED_RETRY_AFTER_S
        return error


NO_LOAD_SHEDDING = LoadShedRule()
