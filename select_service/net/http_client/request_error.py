"""Error of an outgoing request without a complete response."""

from typing import Literal, TypeAlias

from select_service.base.errors import PicklableError

RequestFailure: TypeAlias = Literal[
    "not_allowed", "refused", "unreachable", "closed", "unreadable", "too_large"
]
"""Reason of the failure.

`refused`: the port is closed.  `closed`: the connection ended before a status was received.
"""


class RequestError(PicklableError):
    """Error for a request without a complete response.

    failure: reason in one word
    """

    def __init__(self, failure: RequestFailure, text: str) -> None:
        super().__init__(text)
        self.failure = failure
