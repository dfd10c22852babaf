"""Eligibility check before admission, which also counts requests without an eligible rank."""

from select_service.base.errors import NoEligibleRank
from select_service.core.admission.outcome_counters import AdmissionCounters
from select_service.core.array_types import Mask
from select_service.core.decision_maker import PlacementRequest
from select_service.core.placement.candidates import find_candidates


def eligible_ranks(job: PlacementRequest, tally: AdmissionCounters) -> Mask:
    """Return the ranks a request may use, bool[n_slots].  Raises NoEligibleRank."""
    try:
        return find_candidates(job.partition.table, job.request)
    except NoEligibleRank:
        tally.count_unjudged_refusal("no_rank", job.partition.key)
        raise
