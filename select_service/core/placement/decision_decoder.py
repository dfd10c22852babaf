"""Decoder of recorded decisions: candidates with their cost terms, from a row of the ring.

The numbers of the row are laid out as during the placement.  The policy's own kernel then computes
the terms again, equal to the last bit.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from indexer.index import header_kernels
from select_service.core.array_types import Floats, store_pointer
from select_service.core.load.compiled import load_layout
from select_service.core.placement import decision_ring_layout as layout
from select_service.core.placement import plan_layout
from select_service.core.placement.decision_ring import Words
from select_service.core.placement.placement_kernels import COST
from select_service.core.placement.policies.policy import PlacementPolicy
from select_service.core.placement.policies.policy_registry import policy_by_number
from select_service.core.shared_caches.shared_layout import SHARED_CREDIT, SHARED_FIELDS
from select_service.core.workers import rank_table_layout

_LEADING_MASK = (1 << layout.ASSUMED_BIT) - 1
_REQUESTS_MASK = (1 << layout.OUTSIDE_BIT - layout.HIGH_HALF_BIT) - 1


class RecordedCandidates(NamedTuple):
    """Candidates of a row; the first is the chosen one.

    slots, versions: int64[n], identify the ranks (RankTable.rank_at)
    matched: int32[n, N_TIERS], cumulative blocks
    assumed: int64[n], device blocks of these that are only assumed
    inside: int64[n], reusable tokens behind the last whole block
    credits: int64[n], credit for tokens in a shared cache
    held: int64[n], device blocks of the rank
    booked, left: own work of unfinished prefills and its remainder, int64[n] in tokens
    weights: float64[n]
    outside: 1 for ranks of another replica's share, else 0
    speeds: declared speeds, float64[n] in tokens per second; 0 means undeclared
    factors: cost factors, float64[n]; empty means all 1
    costs: float64[n], as compared by the placement
    """

    policy: PlacementPolicy
    slots: npt.NDArray[np.int64]
    versions: npt.NDArray[np.int64]
    prefill_tokens: npt.NDArray[np.int64]
    active_blocks: npt.NDArray[np.int64]
    leading: npt.NDArray[np.int64]
    assumed: npt.NDArray[np.int64]
    inside: npt.NDArray[np.int64]
    credits: npt.NDArray[np.int64]
    held: npt.NDArray[np.int64]
    requests: npt.NDArray[np.int64]
    matched: npt.NDArray[np.int32]
    work_booked: npt.NDArray[np.int64]
    work_left: npt.NDArray[np.int64]
    kv_blocks: Floats
    weights: Floats
    outside: Floats
    speeds: Floats
    factors: Floats
    costs: Floats


def decode_row(row: Words) -> RecordedCandidates:
    """Decode a row.  O(its candidates)"""
    n = int(row[layout.N_ROWS])
    end = layout.ROW_WORDS + n * layout.CANDIDATE_WORDS
    table = row[layout.ROW_WORDS : end].reshape(n, layout.CANDIDATE_WORDS)
    n_factors = n if row[layout.FLAGS] & layout.HAS_FACTORS else 0
    live = table[:, layout.LEADING_AND_REQUESTS]
    matched = np.ascontiguousarray(table[:, layout.MATCHED_LOW : layout.MATCHED_HIGH + 1])
    more = np.ascontiguousarray(table[:, layout.INSIDE_TOKENS])
    inside = more << layout.HIGH_HALF_BIT >> layout.HIGH_HALF_BIT  # with its sign
    return RecordedCandidates(
        policy=policy_by_number(int(row[layout.POLICY])),
        slots=table[:, layout.SLOT_AND_VERSION] & ((1 << layout.SLOT_BITS) - 1),
        versions=table[:, layout.SLOT_AND_VERSION] >> layout.SLOT_BITS,
        prefill_tokens=table[:, layout.PREFILL_TOKENS],
        active_blocks=table[:, layout.ACTIVE_BLOCKS],
        leading=live & _LEADING_MASK,
        assumed=(live >> layout.ASSUMED_BIT) & layout.ASSUMED_MAX,
        inside=inside,
        credits=(more - inside) >> layout.HIGH_HALF_BIT,
        held=table[:, layout.HELD_BLOCKS],
        requests=(live >> layout.HIGH_HALF_BIT) & _REQUESTS_MASK,
        matched=matched.view(np.int32),
        work_booked=np.ascontiguousarray(table[:, layout.WORK_BOOKED]),
        work_left=np.ascontiguousarray(table[:, layout.WORK_LEFT]),
        kv_blocks=np.ascontiguousarray(table[:, layout.KV_BLOCKS]).view(np.float64),
        weights=np.ascontiguousarray(table[:, layout.WEIGHT]).view(np.float64),
        outside=(live >> layout.OUTSIDE_BIT).astype(np.float64),
        speeds=np.ascontiguousarray(table[:, layout.SPEED]).view(np.float64),
        factors=row[end : end + n_factors].view(np.float64),
        costs=np.ascontiguousarray(table[:, layout.COST]).view(np.float64),
    )


def read_float(row: Words, word: int) -> float:
    """Return the float64 at a word of a row."""
    return float(row[word : word + 1].view(np.float64)[0])


def row_policy(row: Words) -> PlacementPolicy:
    """Return the policy of the decision."""
    return policy_by_number(int(row[layout.POLICY]))


def row_parameters(row: Words) -> Floats:
    """Return the policy parameters of the decision, as in the plan."""
    end = layout.PARAMETERS + int(row[layout.N_PARAMETERS])
    return row[layout.PARAMETERS : end].view(np.float64)


def recorded_terms(row: Words, recorded: RecordedCandidates, block_size: int) -> Floats:
    """Return the cost terms of the decision, float64[n_terms, n]; the policy names the rows."""
    terms = terms_under_policy(recorded.policy, row_parameters(row), row, recorded, block_size)
    # A difference means that kernel and row disagree: a changed layout or a missing input.
    assert np.array_equal(terms[COST], recorded.costs)
    return terms


def terms_under_policy(
    policy: PlacementPolicy,
    parameters: Floats,
    row: Words,
    recorded: RecordedCandidates,
    block_size: int,
) -> Floats:
    """Return the cost terms of any policy for the same numbers, float64[n_terms, n].

    parameters: parameters of this policy
    When the row lacks some candidates, one more with the least prefill tokens is laid out.
    """
    n = len(recorded.slots)
    more = int(row[layout.N_ELIGIBLE] > n)
    terms = np.empty((len(policy.term_names), n + more), np.float64)
    laid_out = _RowPlan(row, recorded, more, block_size, parameters)
    policy.fill_terms(
        laid_out.header,
        np.ones(n + more, np.bool_),
        _extend_rows(recorded.factors, more, 1)
        if len(recorded.factors)
        else recorded.factors.copy(),
        terms,
    )
    return terms[:, :n]


class _RowPlan:
    """Plan (plan_layout) with the candidates of a row as slots, in order."""

    def __init__(
        self,
        row: Words,
        recorded: RecordedCandidates,
        more: int,
        block_size: int,
        parameters: Floats,
    ) -> None:
        """Lay out the row.

        more: number of further candidates, of which only the prefill tokens are known
        """
        of_load = {
            load_layout.TOTALS: _make_totals(row, recorded, more),
            load_layout.FRACTIONS: np.zeros(len(recorded.slots) + more),
            load_layout.WORK_BOOKED: _extend_rows(recorded.work_booked, more, 0),
            load_layout.WORK_LEFT: _extend_rows(recorded.work_left, more, 0),
        }
        of_ranks = {
            rank_table_layout.WEIGHT: _extend_rows(recorded.weights, more, 1),
            rank_table_layout.KV_BLOCKS: _extend_rows(recorded.kv_blocks, more, 1),
            rank_table_layout.OUTSIDE: _extend_rows(recorded.outside, more, 0),
            rank_table_layout.SPEED: _extend_rows(recorded.speeds, more, 0),
        }
        ranks = _make_header(of_ranks, rank_table_layout.HEADER_LENGTH)
        ranks[rank_table_layout.MEDIAN_SPEED] = row[layout.USUAL_SPEED]
        load = _make_header(of_load, load_layout.HEADER_LENGTH)
        load[load_layout.REPORTED_SHARE] = row[layout.REPORTED_SHARE]
        inside = _extend_rows(recorded.inside, more, 0)
        if row[layout.LEAST_WORK]:
            # Reusable tokens leave the further candidates the least own work of all.
            inside[len(recorded.slots) :] = row[layout.ISL_TOKENS] - row[layout.LEAST_WORK]
        live = np.zeros((header_kernels.LIVE_TIERS, len(inside)), np.int64)
        live[0, : len(recorded.slots)] = recorded.held
        of_index = {header_kernels.INSIDE: inside, header_kernels.LIVE: live}
        index = _make_header(of_index, header_kernels.HEADER_LENGTH)
        # Kernels look for tokens inside blocks only where ranks have layouts.
        index[header_kernels.LAYOUTS] = bool(inside.any())
        arrays = {
            plan_layout.INDEX: index,
            plan_layout.LOAD: load,
            plan_layout.RANKS: ranks,
            plan_layout.MATCHED: _extend_rows(recorded.matched, more, 0),
            plan_layout.LEADING: _extend_rows(recorded.leading, more, 0),
            plan_layout.PARAMETERS: parameters,
            plan_layout.SHARED: _make_shared(recorded, more),
        }
        self.header = _make_header(arrays, plan_layout.HEADER_LENGTH)
        self.header[plan_layout.BLOCK_SIZE] = block_size
        self.header[plan_layout.REQUEST_ISL_TOKENS] = row[layout.ISL_TOKENS]
        self.header[plan_layout.REQUEST_BLOCKS] = row[layout.N_BLOCKS]
        self.header[plan_layout.REQUEST_IS_PINNED] = row[layout.FLAGS] & layout.IS_PINNED
        # The header has addresses only; these references keep the arrays alive.
        self._alive = of_load, of_ranks, of_index, arrays


def _make_totals(row: Words, recorded: RecordedCandidates, more: int) -> npt.NDArray[np.int64]:
    """Return totals as in load_layout; active blocks are whole because rounding precedes
    comparing.
    """
    n = len(recorded.slots)
    totals = np.zeros((n + more, load_layout.N_TOTALS), np.int64)
    totals[:n, load_layout.PREFILL_TOKENS] = recorded.prefill_tokens
    totals[:n, load_layout.WHOLE_BLOCKS] = recorded.active_blocks
    totals[:n, load_layout.REQUESTS] = recorded.requests
    totals[n:, load_layout.PREFILL_TOKENS] = row[layout.LEAST_PREFILL]
    return totals


def _make_shared(recorded: RecordedCandidates, more: int) -> Floats:
    """Return the recorded credits as in shared_layout."""
    if not recorded.credits.any():
        return np.zeros(0, np.float64)
    rows = np.zeros((len(recorded.slots) + more, SHARED_FIELDS), np.float64)
    rows[: len(recorded.slots), SHARED_CREDIT] = recorded.credits
    return rows.reshape(-1)


def _make_header(arrays: Mapping[int, npt.NDArray[Any]], length: int) -> npt.NDArray[np.int64]:
    """Return a header, int64[length], with the pairs of arrays."""
    header = np.zeros(length, np.int64)
    for pair, array in arrays.items():
        store_pointer(header, pair, array)
    return header


def _extend_rows(array: npt.NDArray[Any], more: int, value: int) -> npt.NDArray[Any]:
    """Return a copy with `more` further rows of one value."""
    shape = (more, *array.shape[1:])
    return np.concatenate([array, np.full(shape, value, array.dtype)])
