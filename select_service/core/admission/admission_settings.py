"""Settings of the admission stage."""

from typing import NamedTuple

from select_service.core.admission.busy_thresholds import BusyThresholds
from select_service.core.admission.policy_classes import QueueRules


class AdmissionSettings(NamedTuple):
    """Settings of the admission stage; by default every request passes at once.

    queue:          queue rules; None means queueing is off
    engine_stale_s: age from which engine readings are ignored, seconds
    """

    thresholds: BusyThresholds = BusyThresholds()
    queue: QueueRules | None = None
    tiers: tuple[str, ...] = ("premium", "standard", "best_effort")
    default_tier: str = "standard"
    engine_stale_s: float = 5.0
