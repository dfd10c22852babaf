"""The policy `reference`: what its kernels are given, and what its terms are called."""

from collections.abc import Sequence

from select_service.core.decide import reference_kernels as kernels
from select_service.core.decide.policy import Policy
from select_service.core.decide.router_config import RouterConfig


def parameters_of(config: RouterConfig) -> Sequence[float]:
    """In the order of `reference_kernels`."""
    return (
        config.overlap_score_credit,
        config.overlap_score_credit_decay,
        config.prefill_load_scale,
        config.host_cache_hit_weight,
        config.disk_cache_hit_weight,
        config.track_prefill_tokens,
        config.track_active_blocks,
    )


def credit_blocks(matched: Sequence[int], config: RouterConfig) -> float:
    """Overlap credit of one slot (`matched`: its cumulative blocks by tier), without decay."""
    device, host = matched[0], matched[1] - matched[0]
    disk = matched[3] - matched[1]
    return (
        config.overlap_score_credit * device
        + config.host_cache_hit_weight * host
        + config.disk_cache_hit_weight * disk
    )


REFERENCE = Policy(
    name="reference",
    address_of_place=kernels.address_of_place,
    fill_terms=kernels.fill_terms,
    own_terms=("raw", "credit", "prefill"),
    parameters_of=parameters_of,
    credit_blocks=credit_blocks,
)
assert len(REFERENCE.terms) == kernels.N_TERMS
