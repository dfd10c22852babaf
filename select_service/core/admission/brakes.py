"""What is given up for a model whose ranks cannot carry what was promised.

Kept apart from the switch of operators: whichever of both is stricter counts.
"""

from typing import NamedTuple

from select_service.errors import CapacityShed, Degraded

DEGRADED_RETRY_AFTER_S = 30
"""Nobody knows when ranks come back."""


class Brake(NamedTuple):
    """Of one model.

    shed_from:     the highest tier that is shed, 0 the highest of all; None: no tier is
    refuses:       everything new, and what waits
    batch_share:   of batch budgets and busy thresholds, what counts
    latency_share: by which queue timeouts are multiplied
    """

    level: int = 0
    shed_from: int | None = None
    refuses: bool = False
    batch_share: float = 1.0
    latency_share: float = 1.0

    def sheds(self, tier: int) -> bool:
        """tier: 0 the highest"""
        return self.refuses or (self.shed_from is not None and tier >= self.shed_from)

    def refusal(self, shed: CapacityShed) -> CapacityShed | Degraded:
        """What a request is told that is refused.  shed: if only its tier is"""
        if not self.refuses:
            return shed
        error = Degraded(f"degraded: level={self.level}, nothing new is accepted for this model")
        error.retry_after_s = DEGRADED_RETRY_AFTER_S
        return error


NO_BRAKE = Brake()
