"""Why there is no answer to a request of ours."""

from typing import Literal, TypeAlias

from select_service.errors import PortableError

Failure: TypeAlias = Literal[
    "timeout", "unreachable", "http_status", "too_large", "unreadable", "not_allowed"
]
"""`not_allowed`: it leads to an address that must not be connected to."""


class HttpError(PortableError):
    """There is no complete answer with status 200.  `failure`: why, in one word."""

    def __init__(self, failure: Failure, error: str) -> None:
        super().__init__(error)
        self.failure = failure
