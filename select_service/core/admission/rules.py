"""What decides which requests pass at once: the settings of the admission stage."""

from typing import NamedTuple

from select_service.core.admission.policy_classes import QueueRules
from select_service.core.admission.thresholds import BusyThresholds


class AdmissionRules(NamedTuple):
    """What decides which requests pass at once; by default all of them do.

    queue:          None when queueing is off
    engine_stale_s: age from which on what an engine says of its load is not believed
    """

    thresholds: BusyThresholds = BusyThresholds()
    queue: QueueRules | None = None
    tiers: tuple[str, ...] = ("premium", "standard", "best_effort")
    default_tier: str = "standard"
    engine_stale_s: float = 5.0
