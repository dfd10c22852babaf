"""Policy `least_work`: the work left on the rank plus the work of the prompt, and no other term.

The terms are a subset of `work`, so this policy runs the same kernels with other parameters.
"""

from collections.abc import Sequence

from select_service.core.placement.policies.work_policy import FULL_SHARE, WORK_POLICY
from select_service.core.placement.router_config import RouterConfig


def least_work_parameters(config: RouterConfig) -> Sequence[float]:
    """Return the parameters in the order of the work kernels."""
    # A weight of 0 switches a term of the kernel off.
    no_requests, nothing_live = (0.0, 0.0, 0.0, 0.0), (0.0, 0.0, FULL_SHARE)
    weights = config.host_cache_hit_weight, config.disk_cache_hit_weight
    tracked = float(config.track_prefill_tokens)
    no_shares_or_copies = (0.0, 0.0)
    return (
        *(tracked, *no_requests, *nothing_live),
        *(*weights, config.track_active_blocks),
        *no_shares_or_copies,
    )


LEAST_WORK_POLICY = WORK_POLICY._replace(
    name="least_work", own_parameters=least_work_parameters, options=()
)
