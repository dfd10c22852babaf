"""What a row of a ring of decisions says: candidates with the terms of their costs.

The numbers of the row are laid out as a placement finds them, and the policy's own kernel makes the
terms of them again, so that they are what they were to the last bit.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from select_service.core.arrays import Floats, name_array
from select_service.core.decide import decision_layout as layout
from select_service.core.decide import plan_layout
from select_service.core.decide.decision_ring import Words
from select_service.core.decide.placement_kernels import COST
from select_service.core.decide.policies import policy_numbered
from select_service.core.decide.policy import Policy
from select_service.core.load import load_layout
from select_service.core.workers import rank_layout

_LOW = (1 << layout.HALF) - 1
_REQUESTS = (1 << layout.OUTSIDE_BIT - layout.HALF) - 1


class Recorded(NamedTuple):
    """The candidates of a row; the chosen one is the first.

    slots, versions: int64[n], who they are (RankTable.rank_at)
    matched:  int32[n, N_TIERS], cumulative blocks
    booked, left: own work of unfinished prefills, and what is left of it, int64[n] in tokens
    weights:  float64[n];  outside: 1 for ranks of another replica's share, else 0
    speeds:   declared ones, float64[n] in tokens per second; 0: it is not
    factors: of the costs, float64[n] or empty: all 1
    costs:    float64[n], as they were compared
    """

    policy: Policy
    slots: npt.NDArray[np.int64]
    versions: npt.NDArray[np.int64]
    prefill_tokens: npt.NDArray[np.int64]
    active_blocks: npt.NDArray[np.int64]
    leading: npt.NDArray[np.int64]
    requests: npt.NDArray[np.int64]
    matched: npt.NDArray[np.int32]
    booked: npt.NDArray[np.int64]
    left: npt.NDArray[np.int64]
    kv_blocks: Floats
    weights: Floats
    outside: Floats
    speeds: Floats
    factors: Floats
    costs: Floats


def recorded(row: Words) -> Recorded:
    """Read a row.  O(its candidates)"""
    n = int(row[layout.N_ROWS])
    end = layout.ROW_WORDS + n * layout.CANDIDATE_WORDS
    table = row[layout.ROW_WORDS : end].reshape(n, layout.CANDIDATE_WORDS)
    n_factors = n if row[layout.FLAGS] & layout.FACTORED else 0
    live = table[:, layout.LIVE]
    matched = np.ascontiguousarray(table[:, layout.MATCHED_LOW : layout.MATCHED_HIGH + 1])
    return Recorded(
        policy=policy_numbered(int(row[layout.POLICY])),
        slots=table[:, layout.WHO] & ((1 << layout.SLOT_BITS) - 1),
        versions=table[:, layout.WHO] >> layout.SLOT_BITS,
        prefill_tokens=table[:, layout.PREFILL_TOKENS],
        active_blocks=table[:, layout.ACTIVE_BLOCKS],
        leading=live & _LOW,
        requests=(live >> layout.HALF) & _REQUESTS,
        matched=matched.view(np.int32),
        booked=np.ascontiguousarray(table[:, layout.BOOKED]),
        left=np.ascontiguousarray(table[:, layout.LEFT]),
        kv_blocks=np.ascontiguousarray(table[:, layout.KV_BLOCKS]).view(np.float64),
        weights=np.ascontiguousarray(table[:, layout.WEIGHT]).view(np.float64),
        outside=(live >> layout.OUTSIDE_BIT).astype(np.float64),
        speeds=np.ascontiguousarray(table[:, layout.SPEED]).view(np.float64),
        factors=row[end : end + n_factors].view(np.float64),
        costs=np.ascontiguousarray(table[:, layout.COST]).view(np.float64),
    )


def number_in(row: Words, word: int) -> float:
    """A float64 of a row."""
    return float(row[word : word + 1].view(np.float64)[0])


def policy_in(row: Words) -> Policy:
    """By which it was decided."""
    return policy_numbered(int(row[layout.POLICY]))


def parameters_in(row: Words) -> Floats:
    """As the plan had them."""
    end = layout.PARAMETERS + int(row[layout.N_PARAMETERS])
    return row[layout.PARAMETERS : end].view(np.float64)


def terms_of(row: Words, found: Recorded, block_size: int) -> Floats:
    """float64[n_terms, n]: what the costs were made of, rows as the policy names them."""
    terms = terms_under(found.policy, parameters_in(row), row, found, block_size)
    assert np.array_equal(terms[COST], found.costs)
    return terms


def terms_under(
    policy: Policy, parameters: Floats, row: Words, found: Recorded, block_size: int
) -> Floats:
    """float64[n_terms, n]: as `terms_of`, but of what a policy would have made of the same numbers.

    parameters: of that policy
    Where not all candidates are in the row one more is laid out: it has the least prefill tokens.
    """
    n = len(found.slots)
    more = int(row[layout.N_ELIGIBLE] > n)
    terms = np.empty((len(policy.terms), n + more), np.float64)
    laid_out = _Plan(row, found, more, block_size, parameters)
    policy.fill_terms(
        laid_out.header,
        np.ones(n + more, np.bool_),
        _filled(found.factors, more, 1) if len(found.factors) else found.factors.copy(),
        float(row[layout.ISL_TOKENS]),
        float(row[layout.N_BLOCKS]),
        bool(row[layout.FLAGS] & layout.PINNED),
        terms,
    )
    return terms[:, :n]


class _Plan:
    """A plan (plan_layout) in which slots are the candidates of a row, in their order."""

    def __init__(
        self, row: Words, found: Recorded, more: int, block_size: int, parameters: Floats
    ) -> None:
        """more: further candidates, of which only the prefill tokens are known"""
        of_load = {
            load_layout.TOTALS: _totals(row, found, more),
            load_layout.FRACTIONS: np.zeros(len(found.slots) + more),
            load_layout.BOOKED: _filled(found.booked, more, 0),
            load_layout.LEFT: _filled(found.left, more, 0),
        }
        of_ranks = {
            rank_layout.WEIGHT: _filled(found.weights, more, 1),
            rank_layout.KV_BLOCKS: _filled(found.kv_blocks, more, 1),
            rank_layout.OUTSIDE: _filled(found.outside, more, 0),
            rank_layout.SPEED: _filled(found.speeds, more, 0),
        }
        ranks = _header(of_ranks, rank_layout.HEADER_LENGTH)
        ranks[rank_layout.USUAL_SPEED] = row[layout.USUAL_SPEED]
        load = _header(of_load, load_layout.HEADER_LENGTH)
        load[load_layout.REPORTED] = row[layout.REPORTED]
        arrays = {
            plan_layout.LOAD: load,
            plan_layout.RANKS: ranks,
            plan_layout.MATCHED: _filled(found.matched, more, 0),
            plan_layout.LEADING: _filled(found.leading, more, 0),
            plan_layout.PARAMETERS: parameters,
        }
        self.header = _header(arrays, plan_layout.HEADER_LENGTH)
        self.header[plan_layout.BLOCK_SIZE] = block_size
        self._alive = of_load, of_ranks, arrays


def _totals(row: Words, found: Recorded, more: int) -> npt.NDArray[np.int64]:
    """As load_layout has them; active blocks are whole, since they were rounded to be compared."""
    n = len(found.slots)
    totals = np.zeros((n + more, load_layout.N_TOTALS), np.int64)
    totals[:n, load_layout.PREFILL_TOKENS] = found.prefill_tokens
    totals[:n, load_layout.WHOLE_BLOCKS] = found.active_blocks
    totals[:n, load_layout.REQUESTS] = found.requests
    totals[n:, load_layout.PREFILL_TOKENS] = row[layout.LEAST_PREFILL]
    return totals


def _header(arrays: Mapping[int, npt.NDArray[Any]], length: int) -> npt.NDArray[np.int64]:
    """int64[length] that names arrays by their pairs."""
    header = np.zeros(length, np.int64)
    for pair, array in arrays.items():
        name_array(header, pair, array)
    return header


def _filled(array: npt.NDArray[Any], more: int, value: int) -> npt.NDArray[Any]:
    """A copy with `more` further rows of one value."""
    shape = (more, *array.shape[1:])
    return np.concatenate([array, np.full(shape, value, array.dtype)])
