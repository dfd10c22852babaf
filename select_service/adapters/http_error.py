"""Error of an outgoing HTTP request."""

from typing import Literal, TypeAlias

from select_service.base.errors import PicklableError

Failure: TypeAlias = Literal[
    "timeout", "unreachable", "http_status", "too_large", "unreadable", "not_allowed"
]
"""Reason of the failure; `not_allowed` means the egress policy forbids the address."""


class HttpError(PicklableError):
    """Error for a request without a complete response of status 200.

    failure: reason in one word
    """

    def __init__(self, failure: Failure, error: str) -> None:
        super().__init__(error)
        self.failure = failure
