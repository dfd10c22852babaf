"""Rules of the assumed index from the settings."""

from math import inf

from select_service.config.dynamo_settings import DYNAMO_TTL_S
from select_service.config.settings_loader import Config
from select_service.core.assumed.rank_modes import AssumptionRules


def assumption_rules(config: Config) -> AssumptionRules:
    """Return which ranks assume their bookings, and for how long."""
    ttl_s, policy = config["assumed_ttl_s"], config["assumed_policy"]
    if ttl_s is None and policy == "ttl":
        ttl_s = DYNAMO_TTL_S
    return AssumptionRules(
        assumes_without_events=not config["no_assumed_index"],
        ttl_s=inf if ttl_s is None or policy == "lru" else ttl_s,
        beside_events_s=config["predicted_ttl_s"],
        silent_after_s=config["assume_silent_s"],
    )
