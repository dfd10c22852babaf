"""Policy `work`: the rank expected to answer first, by the work each rank still has to do."""

from collections.abc import Sequence
from typing import NamedTuple

from select_service.core.placement.policies import work_kernels as kernels
from select_service.core.placement.policies.policy import PlacementPolicy
from select_service.core.placement.policies.reference_policy import credit_blocks
from select_service.core.placement.policies.work_price_kernels import N_TERMS
from select_service.core.placement.router_config import POLICY_OPTIONS, RouterConfig

COPY_PRICE = 0.5
"""Price of a token computed on a full rank though another rank holds it: it evicts another."""
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


class LoadPrices(NamedTuple):
    """Prices of the load of a rank, by the options.

    left: of a token of remaining work
    requests_per_share: live requests that double the price of own work: engine steps serve these
        too
    share_max: most that they multiply it by
    own_work_max: tokens of own work subject to this price; beyond, the prefill itself dominates
    request: of a live request, in tokens
    live: of a token active on the rank, including the tokens of the prompt
    """

    left: float = 1.0
    requests_per_share: float = 32.0
    share_max: float = 4.0
    own_work_max: float = 16_384.0
    request: float = 256.0
    live: float = 0.0


USUAL_PRICES = LoadPrices()
DECODE_SENSITIVE_PRICES = LoadPrices(
    left=0.8, requests_per_share=16.0, share_max=8.0, request=128.0, live=0.03
)
STRICT_CHANGES = {"requests_per_share": 64.0, "own_work_max": 32_768.0, "live": 0.1}

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
    "copy_price",
)


def work_parameters(config: RouterConfig) -> Sequence[float]:
    """Return the parameters in the order of the work kernels."""
    options = config.policy_options
    prices = DECODE_SENSITIVE_PRICES if "decode-sensitive" in options else USUAL_PRICES
    if "strict-tail" in options:
        prices = prices._replace(**STRICT_CHANGES)
    return (
        prices.left if config.track_prefill_tokens else 0.0,
        1.0 / prices.requests_per_share,
        prices.share_max,
        prices.own_work_max,
        prices.request,
        prices.live,
        0.0 if "no-memory" in options else MEMORY_PRICE,
        FULL_SHARE,
        config.host_cache_hit_weight,
        config.disk_cache_hit_weight,
        config.track_active_blocks,
        OUTSIDE_PRICE,
        COPY_PRICE if "copy-price" in options else 0.0,
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
    credits_shared=True,
)
assert len(WORK_POLICY.term_names) == N_TERMS
