"""Counts of requests on the fast path, added to the metrics when these are read."""

import numpy as np
import numpy.typing as npt

from select_service.core.admission.outcome_counters import AdmissionCounters
from select_service.core.array_types import store_pointer
from select_service.fastpath import serve_layout as layout
from select_service.fastpath.parsing import request_layout as request
from select_service.metrics.service_metrics import SELECTION_BUCKETS_S, ServiceMetrics

_RESERVATION = "/reservations/{reservation_id}"
ROUTES = {
    request.SELECT: ("/select", "POST", 200),
    request.SELECT_AND_RESERVE: ("/select_and_reserve", "POST", 200),
    request.RESERVE: ("/reservations", "POST", 201),
    request.SELECT_PAIR: ("/select_pair", "POST", 200),
    request.SELECT_PAIR_AND_RESERVE: ("/select_pair_and_reserve", "POST", 200),
    request.PREFILL_COMPLETE: (f"{_RESERVATION}/prefill_complete", "POST", 200),
    request.OUTPUT_BLOCK: (f"{_RESERVATION}/output_block", "POST", 200),
    request.RENEW: (f"{_RESERVATION}/renew", "POST", 200),
    request.FIRST_TOKEN: (f"{_RESERVATION}/first_token", "POST", 200),
    request.FREE: (_RESERVATION, "DELETE", 200),
}
_SELECT_ROUTES = (
    request.SELECT,
    request.SELECT_AND_RESERVE,
    request.SELECT_PAIR,
    request.SELECT_PAIR_AND_RESERVE,
)


class FastPathCounts:
    """Counts of the kernel, and the part already added to the metrics."""

    def __init__(
        self, state: npt.NDArray[np.int64], tally: AdmissionCounters, metrics: ServiceMetrics
    ) -> None:
        self._tally, self._metrics = tally, metrics
        self._counts = np.zeros((request.N_ROUTES, layout.COUNT_LENGTH), np.int64)
        self._flushed = self._counts.copy()
        self._bounds_ns = np.array(SELECTION_BUCKETS_S) * 1e9
        assert len(self._bounds_ns) + 1 == layout.N_BUCKETS
        store_pointer(state, layout.COUNTS, self._counts)
        store_pointer(state, layout.BOUNDS_NS, self._bounds_ns)

    def flush_to_metrics(self) -> None:
        """Add new counts to the metrics of the ordinary path, so that readers need not know the
        fast path.
        """
        new = (self._counts - self._flushed).tolist()
        # Kernels only ever add: keeping the last state avoids resetting what they write.
        self._flushed[:] = self._counts
        for number, (route, method, status) in ROUTES.items():
            answers, deciding_ns, *buckets = new[number]
            if answers:
                self._metrics.count_request(route, method, status, answers)
            if answers and number in _SELECT_ROUTES:
                self._metrics.record_selections(route, buckets, deciding_ns * 1e-9)
                self._tally.admitted += answers
