"""Variation of request arrivals, estimated from counts per short time slot."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

SLOTS_MIN = 10
"""Minimum number of slots for an estimate."""
GROUP_MAX, GROUPS_MIN = 6, 5
"""Maximum slots per group, and minimum number of groups.

Requests in batches every few seconds load engines no more than an even stream, as long as each
batch is finished before the next; grouping slots removes such batches from the estimate.
"""


def arrival_variation(arrivals: npt.NDArray[np.int64], lengths_s: Floats) -> float | None:
    """Return the squared coefficient of variation of the times between arrivals; None if unknown.

    arrivals, lengths_s: number of arrivals and seconds, [slots]
    The result is the variance of counts over their mean (1: Poisson).  Differences of neighbouring
    groups are used, over all pairs, so that a slowly changing rate has no influence.

    Source: the index of dispersion for counts (D. R. Cox, P. A. W. Lewis, The Statistical Analysis
    of Series of Events, 1966, 4.5), which depends on the length of a slot; queues react to that of
    their own time scale (K. W. Fendick, W. Whitt, Measurements and Approximations to Describe the
    Offered Traffic and Predict the Average Workload in a Single-Server Queue, Proc. IEEE 77, 1989);
    successive
    differences: J. von Neumann et al., The Mean Square Successive Difference, Ann. Math. Stat. 12
    (1941)
    """
    n = len(arrivals)
    if n < SLOTS_MIN or not arrivals.any():
        return None
    group = min(GROUP_MAX, n // GROUPS_MIN)
    counts, seconds = _sliding_sums(arrivals, group), _sliding_sums(lengths_s, group)
    rates = counts / seconds
    differences = rates[group:] - rates[:-group]
    # Slots differ in length: each difference is weighted by the variance its lengths imply.
    squares = differences**2 / (1 / seconds[group:] + 1 / seconds[:-group])
    return float(squares.mean() / (arrivals.sum() / lengths_s.sum()))


def _sliding_sums(values: npt.NDArray[np.int64] | Floats, group: int) -> Floats:
    """Return the sliding sums of `group` neighbours."""
    return np.convolve(values, np.ones(group), "valid")
