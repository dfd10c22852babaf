"""Candidates for a request: the ranks allowed by constraints and preferred by taints."""

import numpy as np
import numpy.typing as npt

from select_service.base.errors import BadRequest, NoEligibleRank
from select_service.core.array_types import Mask
from select_service.core.identity import Rank
from select_service.core.workers.rank_table import RankTable
from select_service.schemas.selection import SelectRequest

PREFERENCE_MAX = 1e6
"""Bound of a preference weight.  tanh reaches 1 long before, and sums of hostile weights stay
finite.
"""
NO_RANK_TEXT = "no endpoints available to route work"
ALLOWED_LISTED_MAX = 8
"""Number of allowed workers listed in the text of an error."""


def find_candidates(table: RankTable, request: SelectRequest) -> Mask:
    """Return the slots allowed by weight and by the request's own constraints, bool[n_slots].

    Raises BadRequest when the constraints contradict each other, NoEligibleRank without candidates.
    """
    allowed, pinned = request.allowed_worker_ids, request.pinned_worker
    if pinned is not None and allowed is not None and pinned.worker_id not in allowed:
        raise BadRequest(f"pinned worker {pinned.worker_id} is not in allowed worker set")
    if pinned is None and allowed is None and not request.routing_constraints.required_taints:
        if table.is_closed:
            raise _no_candidate_error(table, request)
        # The table's own mask: the usual request has no constraints and must not allocate.
        return table.open_slots
    eligible = _matching_slots(table, request)
    if table.n_closed:
        eligible &= table.open_slots
    if not eligible.any():
        raise _no_candidate_error(table, request)
    return eligible


def check_in_rotation(table: RankTable, slot: int, rank: Rank) -> None:
    """Raise NoEligibleRank, with the rank's state, when the weight of a rank is 0."""
    if table.columns.open[slot]:
        return
    # The error texts take masks, so that one rank is shown like many.
    there = np.zeros(table.n_slots, np.bool_)
    there[slot] = True
    raise _out_of_rotation_error(rank, "", table.states_of_closed(there))


def _matching_slots(table: RankTable, request: SelectRequest) -> Mask:
    """Return the slots matching the constraints of a request, regardless of weight.

    Result: bool[n_slots], a fresh array.
    """
    allowed, pinned = request.allowed_worker_ids, request.pinned_worker
    required = request.routing_constraints.required_taints
    eligible = np.zeros(table.n_slots, np.bool_)
    if pinned is not None:
        slot = table.find_slot(Rank(pinned.worker_id, pinned.dp_rank))
        if slot is not None:
            eligible[slot] = True
    elif allowed is not None:
        eligible[table.slots_of_any(allowed)] = True
    else:
        eligible[:] = table.occupied_slots()
    if required:
        eligible &= table.ranks_with_taints(required)
    return eligible


def preference_factors(
    table: RankTable, preferred: dict[str, float]
) -> npt.NDArray[np.float64] | None:
    """Return the cost factor of each slot by its taints, float64[n_slots].  None means all 1.

    The factor is exp(-tanh(sum of the weights of the slot's taints)).  Weights are 32-bit floats on
    the wire.
    """
    if not preferred:
        return None
    sums = np.zeros(table.n_slots, np.float64)
    for name, given in preferred.items():
        # Weights are 32-bit floats on the wire, so a wider number must not give another cost.
        weight = float(np.float32(max(-PREFERENCE_MAX, min(PREFERENCE_MAX, given))))
        sums[table.ranks_with_taint(name)] += weight
    factors: npt.NDArray[np.float64] = np.exp(-np.tanh(sums))
    return factors


def _no_candidate_error(table: RankTable, request: SelectRequest) -> NoEligibleRank:
    """Return the error explaining why a request has no candidates."""
    states = table.states_of_closed(_matching_slots(table, request)) if table.n_closed else {}
    if not states:
        return NoEligibleRank(_mismatch_text(request))
    pinned = request.pinned_worker
    if pinned is not None:
        return _out_of_rotation_error(Rank(pinned.worker_id, pinned.dp_rank), "pinned ", states)
    counts = ", ".join(f"{n} {state}" for state, n in sorted(states.items()))
    error = NoEligibleRank(f"{NO_RANK_TEXT}: none of the ranks that fit is in rotation ({counts})")
    error.details = _rotation_details(states)
    return error


def _out_of_rotation_error(rank: Rank, prefix: str, states: dict[str, int]) -> NoEligibleRank:
    """Return the error for a named rank of weight 0.

    prefix: prefix of the rank's name, such as "pinned "
    states: the state of this rank only
    """
    (state,) = states
    named = f"{prefix}worker {rank.worker_id} dp_rank {rank.dp_rank}"
    error = NoEligibleRank(f"{NO_RANK_TEXT}: {named} is {state}, out of rotation")
    error.details = _rotation_details(states) | {"state": state}
    return error


def _rotation_details(states: dict[str, int]) -> dict[str, str | int | dict[str, int]]:
    return {"weight": 0, "ranks": sum(states.values()), "states": states}


def _mismatch_text(request: SelectRequest) -> str:
    pinned, allowed = request.pinned_worker, request.allowed_worker_ids
    if allowed == []:
        return f"{NO_RANK_TEXT}: allowed_worker_ids is empty; leave it out to allow all workers"
    required = sorted(request.routing_constraints.required_taints)
    taints = f" with taints {required}" if required else ""
    if pinned is not None:
        rank = f"pinned worker {pinned.worker_id} dp_rank {pinned.dp_rank}"
        return f"{NO_RANK_TEXT}: {rank}{taints} is not schedulable here"
    if allowed is None:
        return f"{NO_RANK_TEXT}: no worker{taints} is schedulable here"
    more = ", ..." if len(allowed) > ALLOWED_LISTED_MAX else ""
    shown = ", ".join(map(str, allowed[:ALLOWED_LISTED_MAX]))
    return (
        f"{NO_RANK_TEXT}: none of the allowed workers ({shown}{more}){taints} is schedulable here"
    )
