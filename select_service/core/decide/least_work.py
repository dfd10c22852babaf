"""The policy `least_work`: the work that is left on the rank and what the prompt adds, no more.

A part of `work`, and so other parameters of its kernel.
"""

from collections.abc import Sequence

from select_service.core.decide.router_config import RouterConfig
from select_service.core.decide.work import FULL, WORK


def parameters_of(config: RouterConfig) -> Sequence[float]:
    """In the order of `work_kernels`."""
    no_requests, nothing_live = (0.0, 0.0, 0.0, 0.0), (0.0, 0.0, FULL)
    weights = config.host_cache_hit_weight, config.disk_cache_hit_weight
    tracked = float(config.track_prefill_tokens)
    no_shares = 0.0
    return (
        *(tracked, *no_requests, *nothing_live),
        *(*weights, config.track_active_blocks, no_shares),
    )


LEAST_WORK = WORK._replace(name="least_work", parameters_of=parameters_of, options=())
