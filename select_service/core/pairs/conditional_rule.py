"""Dynamo's conditional rule for pairs, for comparisons with Dynamo (`--policy reference`).

The policy chooses a decode rank.  If few tokens of the prompt are left to compute there, absolutely
and as a share of the prompt, no other rank takes part; otherwise the policy chooses a prefill rank.
Load, links and the other role play no part: 2.4 times the mean time to the first token of the joint
rule, in simulation.

Source: Dynamo's documented `conditional_disagg` settings of the policy `isl_bounding`.
"""

from math import inf

from select_service.base.errors import NoEligibleRank
from select_service.core.array_types import Mask
from select_service.core.decision_maker import PlacementRequest
from select_service.core.pairs.pair_placer import PairMasks, PairPlacement, PairPlacer
from select_service.core.registry.fleet.partition import RankPlacement
from select_service.core.workers.transfer_prices import DomainRule

LOCAL_TOKENS_MAX = 2048
"""Tokens to compute from which on a prefill rank is chosen (eff_isl_threshold)."""
LOCAL_SHARE_MAX = 0.7
"""Share of the prompt from which on a prefill rank is chosen (eff_isl_ratio_threshold)."""


def is_local_by_rule(isl_tokens: int, cached_tokens: float) -> bool:
    """Return whether the decode rank computes the rest of a prompt itself."""
    missing = isl_tokens - cached_tokens
    return missing < LOCAL_TOKENS_MAX and missing < LOCAL_SHARE_MAX * max(1, isl_tokens)


def place_by_rule(
    job: PlacementRequest,
    placer: PairPlacer,
    masks: PairMasks,
    draw: float,
    domain_rule: DomainRule | None,
) -> PairPlacement | None:
    """Return the choice, or None when nothing is eligible.

    Costs are infinite: the rule compares none.
    """
    partition, prompt = job.partition, job.prompt
    decode = _place(job, masks.decode | masks.both, draw)
    if decode is None:
        return None
    at, isl = decode.slot, prompt.isl_tokens
    cached = float(max(0, isl - decode.effective_prefill_tokens))
    work = decode.own_work, cached
    can_both = bool(masks.both[at])
    if can_both and is_local_by_rule(isl, cached):
        return PairPlacement(None, at, inf, inf, *_NOTHING, *work)
    prices = placer.prices_into(at, domain_rule)
    there = masks.prefill & (prices[: partition.table.n_slots] < inf)
    there[at] = False
    prefill = _place(job, there, draw) if masks.decode[at] else None
    if prefill is None:
        return PairPlacement(None, at, inf, inf, *_NOTHING, *work) if can_both else None
    moving = isl - cached
    return PairPlacement(
        prefill.slot,
        at,
        inf,
        inf,
        moving,
        float(prices[prefill.slot]) * moving,
        0.0,
        0.0,
        prefill.own_work,
        float(max(0, isl - prefill.effective_prefill_tokens)),
        *work,
    )


_NOTHING = (0.0,) * 6
"""Numbers of the move and of the prefill rank, where one rank does both."""


def _place(job: PlacementRequest, eligible: Mask, draw: float) -> RankPlacement | None:
    if not eligible.any():
        return None
    try:
        return job.partition.place_prompt(job.prompt, job.request, job.config, eligible, draw)
    except NoEligibleRank:
        return None
