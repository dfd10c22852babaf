"""Which ranks a request itself allows, and which it prefers."""

import numpy as np
import numpy.typing as npt

from select_service.bodies.selection import SelectRequest
from select_service.core.arrays import Mask
from select_service.core.identity import Rank
from select_service.core.workers.rank_table import RankTable
from select_service.errors import BadRequest, NoEligibleRank

PREFERENCE_MAX = 1e6
"""tanh is 1 long before this; the bound keeps sums of hostile weights finite."""
NO_RANK = "no endpoints available to route work"
ALLOWED_SHOWN_MAX = 8
"""Of the allowed workers of a request, in the text of its refusal."""


def candidates(table: RankTable, request: SelectRequest) -> Mask:
    """bool[n_slots]: who may be chosen, by weight and by the request's own constraints.

    Raises BadRequest when these contradict each other, NoEligibleRank when nobody may.
    """
    allowed, pinned = request.allowed_worker_ids, request.pinned_worker
    if pinned is not None and allowed is not None and pinned.worker_id not in allowed:
        raise BadRequest(f"pinned worker {pinned.worker_id} is not in allowed worker set")
    if pinned is None and allowed is None and not request.routing_constraints.required_taints:
        if table.is_closed:
            raise _nobody(table, request)
        return table.open
    eligible = _fitting(table, request)
    if table.n_closed:
        eligible &= table.open
    if not eligible.any():
        raise _nobody(table, request)
    return eligible


def refuse_out_of_rotation(table: RankTable, slot: int, rank: Rank) -> None:
    """Raises NoEligibleRank, with its state, for a rank of weight 0."""
    if table.columns.open[slot]:
        return
    there = np.zeros(table.n_slots, np.bool_)
    there[slot] = True
    raise _out_of_rotation(rank, "", table.states_of_closed(there))


def _fitting(table: RankTable, request: SelectRequest) -> Mask:
    """bool[n_slots], fresh: who fits the request, whatever its weight."""
    allowed, pinned = request.allowed_worker_ids, request.pinned_worker
    required = request.routing_constraints.required_taints
    eligible = np.zeros(table.n_slots, np.bool_)
    if pinned is not None:
        slot = table.find(Rank(pinned.worker_id, pinned.dp_rank))
        if slot is not None:
            eligible[slot] = True
    elif allowed is not None:
        eligible[table.slots_of_any(allowed)] = True
    else:
        eligible[:] = table.standing()
    if required:
        eligible &= table.having_all(required)
    return eligible


def preference_factors(
    table: RankTable, preferred: dict[str, float]
) -> npt.NDArray[np.float64] | None:
    """float64[n_slots]: what the taints of each slot multiply its cost by; None: all 1.

    exp(-tanh(sum of the weights of its taints)); weights are 32-bit floats on the wire
    """
    if not preferred:
        return None
    sums = np.zeros(table.n_slots, np.float64)
    for name, given in preferred.items():
        weight = float(np.float32(max(-PREFERENCE_MAX, min(PREFERENCE_MAX, given))))
        sums[table.having(name)] += weight
    factors: npt.NDArray[np.float64] = np.exp(-np.tanh(sums))
    return factors


def _nobody(table: RankTable, request: SelectRequest) -> NoEligibleRank:
    """Why nobody may be chosen."""
    states = table.states_of_closed(_fitting(table, request)) if table.n_closed else {}
    if not states:
        return NoEligibleRank(_misfit(request))
    pinned = request.pinned_worker
    if pinned is not None:
        return _out_of_rotation(Rank(pinned.worker_id, pinned.dp_rank), "pinned ", states)
    counts = ", ".join(f"{n} {state}" for state, n in sorted(states.items()))
    error = NoEligibleRank(f"{NO_RANK}: none of the ranks that fit is in rotation ({counts})")
    error.details = _details(states)
    return error


def _out_of_rotation(rank: Rank, how: str, states: dict[str, int]) -> NoEligibleRank:
    """states: its own.  how: it was asked for"""
    (state,) = states
    named = f"{how}worker {rank.worker_id} dp_rank {rank.dp_rank}"
    error = NoEligibleRank(f"{NO_RANK}: {named} is {state}, out of rotation")
    error.details = _details(states) | {"state": state}
    return error


def _details(states: dict[str, int]) -> dict[str, str | int | dict[str, int]]:
    return {"weight": 0, "ranks": sum(states.values()), "states": states}


def _misfit(request: SelectRequest) -> str:
    pinned, allowed = request.pinned_worker, request.allowed_worker_ids
    if allowed == []:
        return f"{NO_RANK}: allowed_worker_ids is empty; leave it out to allow all workers"
    required = sorted(request.routing_constraints.required_taints)
    taints = f" with taints {required}" if required else ""
    if pinned is not None:
        rank = f"pinned worker {pinned.worker_id} dp_rank {pinned.dp_rank}"
        return f"{NO_RANK}: {rank}{taints} is not schedulable here"
    if allowed is None:
        return f"{NO_RANK}: no worker{taints} is schedulable here"
    more = ", ..." if len(allowed) > ALLOWED_SHOWN_MAX else ""
    shown = ", ".join(map(str, allowed[:ALLOWED_SHOWN_MAX]))
    return f"{NO_RANK}: none of the allowed workers ({shown}{more}){taints} is schedulable here"
