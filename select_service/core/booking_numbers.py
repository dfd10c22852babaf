"""Numbers of a booking that follow from request and placement."""

from typing import NamedTuple

import numpy as np

from indexer.hashing.block_hashing import Hashes
from select_service.base.errors import BadRequest
from select_service.core.identity import Rank
from select_service.core.load.compiled.ledger_layout import ANY_PART
from select_service.core.load.new_reservation import UNKNOWN_CACHED, MoveConstraints
from select_service.core.placement.placer import PINNED_RANK
from select_service.core.placement.prompt import Prompt
from select_service.core.placement.router_config import RouterConfig
from select_service.core.registry.fleet.partition import Partition, RankPlacement
from select_service.schemas.pairs import PairRecord
from select_service.schemas.reservations import ReservationRequest
from select_service.schemas.selection import SelectAndReserveRequest, SelectRequest


class PlacedPrefill(NamedTuple):
    """Prefill of a prompt on the slot it is booked on.

    tokens: prefill tokens; None means prefill is not tracked
    own_work: tokens the rank would compute; None means all booked tokens
    cached_blocks: prompt blocks present on the rank, or UNKNOWN_CACHED
    pair: request behind a pair, of its decode leg
    request_part: part of the request that is booked, for observations (ledger_layout)
    """

    slot: int
    tokens: int | None
    own_work: int | None = None
    cached_blocks: int = 0
    pair: PairRecord | None = None
    request_part: int = ANY_PART


def placed_prefill(placement: RankPlacement, config: RouterConfig) -> PlacedPrefill:
    """Return the prefill of a placement with this configuration."""
    tokens = placement.effective_prefill_tokens if config.track_prefill_tokens else None
    return PlacedPrefill(placement.slot, tokens, placement.own_work, placement.external)


def move_constraints_of(
    request: SelectRequest | ReservationRequest, block_hashes: Hashes
) -> MoveConstraints:
    """Return the migration constraints of a request.

    block_hashes: uint64[n], block hashes of the prompt
    """
    if isinstance(request, ReservationRequest):
        return MoveConstraints(block_hashes, migratable=request.migratable)
    pinned, allowed = request.pinned_worker, request.allowed_worker_ids
    required, priority = request.routing_constraints.required_taints, request.strict_priority or 0
    migratable = not isinstance(request, SelectAndReserveRequest) or request.migratable
    if migratable and not (priority or pinned is not None or allowed is not None or required):
        return MoveConstraints(block_hashes)
    return MoveConstraints(
        block_hashes,
        priority=priority,
        migratable=migratable,
        pinned=None if pinned is None else Rank(pinned.worker_id, pinned.dp_rank),
        allowed=None if allowed is None else frozenset(allowed),
        required=frozenset(required),
    )


def booked_tokens(
    request: ReservationRequest, partition: Partition, prompt: Prompt, config: RouterConfig
) -> int | None:
    """Return the prefill tokens of a reservation; None means that they do not count.

    The caller's number wins; otherwise the whole prompt counts, if prefill is tracked.
    """
    tokens = request.effective_prefill_tokens
    if tokens is not None and tokens > prompt.isl_tokens:
        raise BadRequest(
            f"effective_prefill_tokens ({tokens}) must not exceed isl_tokens ({prompt.isl_tokens})"
        )
    is_tracked = request.track_prefill_tokens
    if is_tracked is None:
        is_tracked = tokens is not None or config.track_prefill_tokens
    if not is_tracked:
        return None
    if tokens is not None:
        return tokens
    # Dynamo 1.6 counts nothing without the number.  Its rule is kept only where load is compared
    # with Dynamo's: a policy that follows prefills would take the rank for idle.
    counts_none = request.is_selection_named and not partition.placer.policy.follows_prefills
    return 0 if counts_none else prompt.isl_tokens


def estimate_prefill(
    partition: Partition, slot: int, prompt: Prompt, config: RouterConfig, tokens: int | None
) -> PlacedPrefill:
    """Return the prefill of a prompt on the rank chosen by the caller.

    tokens: booked prefill tokens, the upper limit of the own work
    """
    placing = partition.placer
    if tokens is None or not placing.policy.follows_prefills:
        return PlacedPrefill(slot, tokens, cached_blocks=UNKNOWN_CACHED)
    # A placement with a single candidate gives the overlap on that rank.
    there = np.zeros(partition.table.n_slots, np.bool_)
    there[slot] = True
    placing.place_prompt(prompt, config, there, PINNED_RANK)
    found = RankPlacement(slot, *placing.last_summary())
    return PlacedPrefill(slot, tokens, min(tokens, found.own_work), found.external)
