"""Handler that leaves requests to be traced to the ordinary path, which creates the spans.

The sampler determined at the start which requests may need a span; here only the `sampled` flag
of the `traceparent` header is read.  A sampler that takes a fraction of all requests decides in the
ordinary path, so that all its candidates are left to that path.

Source: https://www.w3.org/TR/trace-context-1/, section 3.2.
"""

import re

from select_service.fastpath.fast_handler import FastHandler
from select_service.fastpath.parsing.request_layout import HEAD_BYTES_MAX
from select_service.metrics.tracing import TracingCounts

ROUTES = (b"POST /select", b"POST /reservations ")
"""Beginnings of traced requests; no other common request begins like this."""
TRACEPARENT = re.compile(
    rb"\n(?i:traceparent):[ \t]*[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]([0-9a-f])"
)
_SAMPLED = frozenset(b"13579bdf")


class TracingFilter:
    """`FastHandler` that declines requests that may need a span."""

    __slots__ = ("_counts", "_handler", "_sampled", "_unsampled", "_without_parent", "end")

    def __init__(
        self, handler: FastHandler, counts: TracingCounts, may_sample: tuple[bool, bool, bool]
    ) -> None:
        """may_sample: requests sampled by their caller, not sampled by their caller, and without
        traceparent
        """
        self.end = 0
        self._handler, self._counts = handler, counts
        self._sampled, self._unsampled, self._without_parent = may_sample

    def answer_request(self, data: bytes, at: int, socket_fd: int = -1) -> bytes | None:
        """See `FastHandler`."""
        if self._may_get_a_span(data, at):
            self._counts.aside += 1
            self.end = 0
            return None
        answer = self._handler.answer_request(data, at, socket_fd)
        self.end = self._handler.end
        return answer

    def _may_get_a_span(self, data: bytes, at: int) -> bool:
        behind = data.find(b"\r\n\r\n", at, at + HEAD_BYTES_MAX)
        if behind < 0:
            return False  # undecided until the head is complete
        found = TRACEPARENT.search(data, at, behind)
        if found is None:
            may = self._without_parent
        else:
            may = self._sampled if data[found.start(1)] in _SAMPLED else self._unsampled
        # Checked last: most requests are already excluded by the sampling decision.
        return may and data.startswith(ROUTES, at)
