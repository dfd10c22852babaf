"""Policy `work`: the rank expected to answer first, by the work each rank still has to do."""

from collections.abc import Sequence

from select_service.core.placement.policies import work_kernels as kernels
from select_service.core.placement.policies.policy import PlacementPolicy
from select_service.core.placement.policies.reference_policy import credit_blocks
from select_service.core.placement.router_config import POLICY_OPTIONS, RouterConfig

REQUEST_TOKENS = 256.0
"""Cost of a live request of the rank, in tokens."""
REQUESTS_PER_SHARE = 32.0
"""Number of live requests that doubles the price of own work: every engine step serves these
too.
"""
STRICT_REQUESTS_PER_SHARE = 64.0
SHARE_MAX = 4.0
OWN_WORK_MAX = 16_384.0
"""Tokens of own work subject to the share price; beyond, the prefill itself dominates the time."""
STRICT_OWN_WORK_MAX = 32_768.0
DECODE_PRICE = 0.06
STRICT_DECODE_PRICE = 0.1
"""Price of a token active on the rank, including the tokens of the prompt."""
MEMORY_PRICE = 1.0
"""Price of an active token beyond the usable KV cache of the rank.

The price assumes that freeing a token of memory takes as long as computing a token.  Higher prices
were worse in fleets where all caches are full.
"""
FULL_SHARE = 0.95
"""Share of the KV cache above which the memory price applies."""
OUTSIDE_PRICE = 4096.0
"""Maximum price of ranks outside this replica's share, in tokens.

Two replicas unaware of each other's latest bookings then seldom prefill much on the same rank.
"""

OWN_TERM_NAMES = (
    "own_work",
    "booked_work",
    "progress",
    "left_price",
    "share_price",
    "request_price",
    "live_price",
    "memory_price",
    "outside_price",
)


def work_parameters(config: RouterConfig) -> Sequence[float]:
    """Return the parameters in the order of the work kernels."""
    options = config.policy_options
    is_strict = "strict-tail" in options
    live_price = DECODE_PRICE if "decode-sensitive" in options else 0.0
    return (
        float(config.track_prefill_tokens),
        1.0 / (STRICT_REQUESTS_PER_SHARE if is_strict else REQUESTS_PER_SHARE),
        SHARE_MAX,
        STRICT_OWN_WORK_MAX if is_strict else OWN_WORK_MAX,
        REQUEST_TOKENS,
        max(live_price, STRICT_DECODE_PRICE) if is_strict else live_price,
        0.0 if "no-memory" in options else MEMORY_PRICE,
        FULL_SHARE,
        config.host_cache_hit_weight,
        config.disk_cache_hit_weight,
        config.track_active_blocks,
        OUTSIDE_PRICE,
    )


WORK_POLICY = PlacementPolicy(
    name="work",
    address_of_place=kernels.address_of_place,
    fill_terms=kernels.fill_terms,
    own_term_names=OWN_TERM_NAMES,
    own_parameters=work_parameters,
    credit_blocks=credit_blocks,
    follows_prefills=True,
    options=POLICY_OPTIONS,
)
assert len(WORK_POLICY.term_names) == kernels.N_TERMS
