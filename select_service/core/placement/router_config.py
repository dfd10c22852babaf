"""Scheduling parameters of the process and of a request."""

from typing import Any, NamedTuple

from select_service.schemas.prompts import RouterConfigOverride

POLICY_NAMES = ("work", "least_work", "reference")
"""Allowed values of `policy`, see the registry of policies; only the first has options."""
POLICY_OPTIONS = ("decode-sensitive", "strict-tail", "no-memory", "copy-price")
"""Allowed values of `policy_options`, all of the first policy."""


class RouterConfig(NamedTuple):
    """Scheduling parameters of the process; a request may override some, but not the policy."""

    overlap_score_credit: float = 1.0
    overlap_score_credit_decay: float = 0.0
    prefill_load_scale: float = 1.0
    decode_active_request_weight: float = 0.0
    host_cache_hit_weight: float = 0.75
    disk_cache_hit_weight: float = 0.25
    temperature: float = 0.0
    track_prefill_tokens: bool = True
    track_active_blocks: bool = True
    track_output_blocks: bool = True
    assume_kv_reuse: bool = True
    policy: str = "work"
    policy_options: tuple[str, ...] = ()


def apply_override(config: RouterConfig, override: RouterConfigOverride | None) -> RouterConfig:
    """Return the configuration of a request.

    The deprecated `overlap_score_weight` sets the prefill load scale; 0 also removes the overlap
    credit.
    """
    if override is None:
        return config
    given: dict[str, Any] = {
        "overlap_score_credit": override.overlap_score_credit,
        "prefill_load_scale": override.prefill_load_scale,
        "temperature": override.router_temperature,
        "track_prefill_tokens": override.track_prefill_tokens,
        "assume_kv_reuse": override.assume_kv_reuse,
    }
    if override.overlap_score_weight is not None:
        given["prefill_load_scale"] = override.overlap_score_weight
        if override.overlap_score_weight == 0.0:
            given["overlap_score_credit"] = 0.0
    return config._replace(**{name: value for name, value in given.items() if value is not None})
