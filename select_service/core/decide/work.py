"""The policy `work`: the rank that would answer first, by the work that each still has to do."""

from collections.abc import Sequence

from select_service.core.decide import work_kernels as kernels
from select_service.core.decide.policy import Policy
from select_service.core.decide.reference import credit_blocks
from select_service.core.decide.router_config import POLICY_OPTIONS, RouterConfig

REQUEST_TOKENS = 256.0
"""What a live request of the rank costs."""
REQUESTS_OF_A_SHARE = 32.0
"""So many live requests make own work twice as dear: each step of the engine serves them, too."""
STRICT_REQUESTS_OF_A_SHARE = 64.0
SHARE_MAX = 4.0
OWN_WORK_MAX = 16_384.0
"""Tokens of own work that become dearer so; of more the prefill itself is what takes long."""
STRICT_OWN_WORK_MAX = 32_768.0
DECODE_PRICE = 0.06
STRICT_DECODE_PRICE = 0.1
"""Of a token that is active on the rank, or would be."""
MEMORY_PRICE = 1.0
"""Of such a token that the KV cache of the rank has hardly room for: as if a token of memory took
as long to become free as one takes to be computed.  Higher prices are worse where all are full."""
FULL = 0.95
"""The share of the KV cache from which on that counts."""
OUTSIDE_PRICE = 4096.0
"""At most, for ranks outside the share of this replica: two that do not know yet of each other's
bookings seldom compute much on the same rank then."""

OWN_TERMS = (
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


def parameters_of(config: RouterConfig) -> Sequence[float]:
    """In the order of `work_kernels`."""
    options = config.policy_options
    is_strict = "strict-tail" in options
    live_price = DECODE_PRICE if "decode-sensitive" in options else 0.0
    return (
        float(config.track_prefill_tokens),
        1.0 / (STRICT_REQUESTS_OF_A_SHARE if is_strict else REQUESTS_OF_A_SHARE),
        SHARE_MAX,
        STRICT_OWN_WORK_MAX if is_strict else OWN_WORK_MAX,
        REQUEST_TOKENS,
        max(live_price, STRICT_DECODE_PRICE) if is_strict else live_price,
        0.0 if "no-memory" in options else MEMORY_PRICE,
        FULL,
        config.host_cache_hit_weight,
        config.disk_cache_hit_weight,
        config.track_active_blocks,
        OUTSIDE_PRICE,
    )


WORK = Policy(
    name="work",
    address_of_place=kernels.address_of_place,
    fill_terms=kernels.fill_terms,
    own_terms=OWN_TERMS,
    parameters_of=parameters_of,
    credit_blocks=credit_blocks,
    follows=True,
    options=POLICY_OPTIONS,
)
assert len(WORK.terms) == kernels.N_TERMS
