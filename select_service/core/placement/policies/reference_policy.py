"""Policy `reference`: parameters of the kernels and names of the terms."""

from collections.abc import Sequence

from select_service.core.placement.policies import reference_kernels as kernels
from select_service.core.placement.policies.policy import PlacementPolicy
from select_service.core.placement.router_config import RouterConfig


def reference_parameters(config: RouterConfig) -> Sequence[float]:
    """Return the parameters in the order of the reference kernels."""
    return (
        config.overlap_score_credit,
        config.overlap_score_credit_decay,
        config.prefill_load_scale,
        config.host_cache_hit_weight,
        config.disk_cache_hit_weight,
        config.track_prefill_tokens,
        config.track_active_blocks,
        config.decode_active_request_weight,
    )


def credit_blocks(matched: Sequence[int], config: RouterConfig) -> float:
    """Return the overlap credit of a slot without decay, in blocks.

    matched: cumulative blocks of the slot by tier
    """
    device, host = matched[0], matched[1] - matched[0]
    disk = matched[3] - matched[1]
    return (
        config.overlap_score_credit * device
        + config.host_cache_hit_weight * host
        + config.disk_cache_hit_weight * disk
    )


REFERENCE_POLICY = PlacementPolicy(
    name="reference",
    address_of_place=kernels.address_of_place,
    fill_terms=kernels.fill_terms,
    own_term_names=("raw", "credit", "prefill", "request_cost"),
    own_parameters=reference_parameters,
    credit_blocks=credit_blocks,
)
assert len(REFERENCE_POLICY.term_names) == kernels.N_TERMS
