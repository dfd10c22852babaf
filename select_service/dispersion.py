"""How unevenly requests arrive, from counts of short slots of time."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

SLOTS_MIN = 10
"""Of fewer slots the variation of arrivals says nothing."""
GROUP_MAX, GROUPS_MIN = 6, 5
"""Slots that are counted together, where so many groups are there. Requests that come in batches
every few seconds keep engines no busier than an even stream, as long as one is done before the
next."""


def arrival_variation(arrivals: npt.NDArray[np.int64], lengths_s: Floats) -> float | None:
    """Squared coefficient of variation of the times between arrivals, of counts by slot.

    arrivals, lengths_s: [slots].  That is what the variance of counts over their mean comes to
    (1: Poisson); neighbours are compared, all pairs of them, so that a rate that changes slowly
    counts for nothing.  None: too little is known.

    Source: the index of dispersion for counts (D. R. Cox, P. A. W. Lewis, The Statistical Analysis
    of Series of Events, 1966, 4.5), which depends on the time that is counted together, and of
    which queues see that of their own times (K. W. Fendick, W. Whitt, Measurements and
    Approximations to Describe the Offered Traffic and Predict the Average Workload in a
    Single-Server Queue, Proc. IEEE 77, 1989); successive differences: J. von Neumann et al., The
    Mean Square Successive Difference, Ann. Math. Stat. 12 (1941)
    """
    n = len(arrivals)
    if n < SLOTS_MIN or not arrivals.any():
        return None
    group = min(GROUP_MAX, n // GROUPS_MIN)
    counts, seconds = _grouped(arrivals, group), _grouped(lengths_s, group)
    rates = counts / seconds
    differences = rates[group:] - rates[:-group]
    squares = differences**2 / (1 / seconds[group:] + 1 / seconds[:-group])
    return float(squares.mean() / (arrivals.sum() / lengths_s.sum()))


def _grouped(values: npt.NDArray[np.int64] | Floats, group: int) -> Floats:
    """Sums of so many neighbours, from each of them on."""
    return np.convolve(values, np.ones(group), "valid")
