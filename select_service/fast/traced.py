"""Leaves requests that are to have a span to the ordinary path, which makes them.

Which those may be the sampler has said at the start; here only the head is looked at, for the flag
`sampled` of its `traceparent`.  A sampler that takes part of all requests decides in the ordinary
path, so that all that it may take are left to that.

Source: https://www.w3.org/TR/trace-context-1/, section 3.2.
"""

import re

from select_service.fast.answerer import Answerer
from select_service.fast.request_layout import HEAD_BYTES_MAX
from select_service.metrics.tracing import TracingCounts

ROUTES = (b"POST /select", b"POST /reservations ")
"""What is traced begins so; no other usual request does."""
TRACEPARENT = re.compile(
    rb"\n(?i:traceparent):[ \t]*[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]([0-9a-f])"
)
_SAMPLED = frozenset(b"13579bdf")


class Traced:
    """An `Answerer` that gives up what may get a span."""

    __slots__ = ("_counts", "_inner", "_rootless", "_sampled", "_unsampled", "end")

    def __init__(
        self, inner: Answerer, counts: TracingCounts, may_sample: tuple[bool, bool, bool]
    ) -> None:
        """may_sample: requests that their caller samples, does not sample, and those without"""
        self.end = 0
        self._inner, self._counts = inner, counts
        self._sampled, self._unsampled, self._rootless = may_sample

    @property
    def is_select(self) -> bool:
        """See `Answerer`."""
        return self._inner.is_select

    def answer(self, data: bytes, at: int, file: int = -1) -> bytes | None:
        """See `Answerer`."""
        if self._may_get_a_span(data, at):
            self._counts.aside += 1
            self.end = 0
            return None
        answer = self._inner.answer(data, at, file)
        self.end = self._inner.end
        return answer

    def _may_get_a_span(self, data: bytes, at: int) -> bool:
        behind = data.find(b"\r\n\r\n", at, at + HEAD_BYTES_MAX)
        if behind < 0:
            return False  # nobody answers it before its head is complete
        found = TRACEPARENT.search(data, at, behind)
        if found is None:
            may = self._rootless
        else:
            may = self._sampled if data[found.start(1)] in _SAMPLED else self._unsampled
        return may and data.startswith(ROUTES, at)
