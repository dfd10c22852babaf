"""The policy `reference`: what its kernel is given, and what its terms are called."""

from collections.abc import Sequence

import numpy as np

from select_service.core.arrays import Floats
from select_service.core.decide import reference_kernels as kernels
from select_service.core.decide.policy import Policy
from select_service.core.decide.router_config import RouterConfig


def parameters_of(config: RouterConfig, block_size: int) -> Floats:
    """float64[N_PARAMETERS] for the kernel of the policy, which only reads it."""
    found = np.zeros(kernels.N_PARAMETERS, np.float64)
    found[kernels.P_CREDIT] = config.overlap_score_credit
    found[kernels.P_CREDIT_DECAY] = config.overlap_score_credit_decay
    found[kernels.P_SCALE] = config.prefill_load_scale
    found[kernels.P_HOST] = config.host_cache_hit_weight
    found[kernels.P_DISK] = config.disk_cache_hit_weight
    found[kernels.P_TRACK_PREFILL] = config.track_prefill_tokens
    found[kernels.P_TRACK_ACTIVE] = config.track_active_blocks
    found[kernels.P_KV_REUSE] = config.assume_kv_reuse
    found[kernels.P_TEMPERATURE] = config.temperature
    found[kernels.P_BLOCK_SIZE] = block_size
    return found


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
    place=kernels.place,
    own_terms=("raw", "credit", "prefill"),
    parameters_of=parameters_of,
    credit_blocks=credit_blocks,
)
assert len(REFERENCE.terms) == kernels.N_TERMS
