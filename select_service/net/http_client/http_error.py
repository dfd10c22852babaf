"""Error of an outgoing request without a complete, good response."""

from typing import Literal, TypeAlias

from select_service.base.errors import PicklableError

HttpFailure: TypeAlias = Literal[
    "not_allowed",
    "refused",
    "unreachable",
    "closed",
    "unreadable",
    "too_large",
    "timeout",
    "http_status",
]
"""Reason of the failure.

`not_allowed`: the egress policy forbids the address.  `refused`: the port is closed.  `closed`: the
connection ended before a status was received.  `http_status`: the status is not good.
"""


class HttpError(PicklableError):
    """Error for a request without a complete, good response.

    failure: reason in one word
    status, body: status and body of a complete response; 0 and empty without one
    """

    def __init__(self, failure: HttpFailure, text: str, status: int = 0, body: bytes = b"") -> None:
        super().__init__(text)
        self.failure = failure
        self.status = status
        self.body = body

    @property
    def metric_label(self) -> HttpFailure:
        """Reason as metrics and health checks count it: closed ports count as unreachable."""
        return "unreachable" if self.failure in ("refused", "closed") else self.failure
