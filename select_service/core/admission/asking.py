"""Requests for a rank that never come before the gate are counted, too."""

from select_service.core.admission.tally import AdmissionTally
from select_service.core.arrays import Mask
from select_service.core.decide.candidates import candidates
from select_service.core.decisions import Job
from select_service.errors import NoEligibleRank


def allowed_by(job: Job, tally: AdmissionTally) -> Mask:
    """bool[n_slots]: the ranks that a request may go to.  Raises NoEligibleRank."""
    try:
        return candidates(job.partition.table, job.request)
    except NoEligibleRank:
        tally.turned_away("no_rank", job.partition.key)
        raise
