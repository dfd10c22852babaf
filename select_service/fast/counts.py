"""What was answered here: counted in an array, added to the other counters when they are read."""

import numpy as np
import numpy.typing as npt

from select_service.core.admission.tally import AdmissionTally
from select_service.core.arrays import name_array
from select_service.fast import serve_layout as layout
from select_service.fast.request_layout import (
    FREE,
    N_ROUTES,
    OUTPUT_BLOCK,
    PREFILL_COMPLETE,
    RENEW,
    RESERVE,
    SELECT,
    SELECT_AND_RESERVE,
)
from select_service.metrics.service_metrics import SELECTION_BUCKETS_S, Metrics

_RESERVATION = "/reservations/{reservation_id}"
ROUTES = {
    SELECT: ("/select", "POST", 200),
    SELECT_AND_RESERVE: ("/select_and_reserve", "POST", 200),
    RESERVE: ("/reservations", "POST", 201),
    PREFILL_COMPLETE: (f"{_RESERVATION}/prefill_complete", "POST", 200),
    OUTPUT_BLOCK: (f"{_RESERVATION}/output_block", "POST", 200),
    RENEW: (f"{_RESERVATION}/renew", "POST", 200),
    FREE: (_RESERVATION, "DELETE", 200),
}
_CHOOSE = (SELECT, SELECT_AND_RESERVE)


class Counts:
    """Counts of the kernel, and how many of them the others have already."""

    def __init__(
        self, state: npt.NDArray[np.int64], tally: AdmissionTally, metrics: Metrics
    ) -> None:
        self._tally, self._metrics = tally, metrics
        self._counts = np.zeros((N_ROUTES, layout.COUNT_LENGTH), np.int64)
        self._passed_on = self._counts.copy()
        self._bounds_ns = np.array(SELECTION_BUCKETS_S) * 1e9
        assert len(self._bounds_ns) + 1 == layout.N_BUCKETS
        name_array(state, layout.COUNTS, self._counts)
        name_array(state, layout.BOUNDS_NS, self._bounds_ns)

    def pass_on(self) -> None:
        """Add what is new to the counters of the ordinary path, so that nobody need know of it."""
        new = (self._counts - self._passed_on).tolist()
        self._passed_on[:] = self._counts
        for number, (route, method, status) in ROUTES.items():
            answers, deciding_ns, *buckets = new[number]
            if answers:
                self._metrics.request(route, method, status, answers)
            if answers and number in _CHOOSE:
                self._metrics.selections(route, buckets, deciding_ns * 1e-9)
                self._tally.admitted += answers
