"""Why a request of ours has no complete answer."""

from typing import Literal, TypeAlias

from select_service.errors import PortableError

RequestFailure: TypeAlias = Literal[
    "not_allowed", "refused", "unreachable", "closed", "unreadable", "too_large"
]
"""`refused`: nothing listens there.  `closed`: the connection ended before there was a status."""


class RequestError(PortableError):
    """There is no complete answer.  failure: the reason, in one word"""

    def __init__(self, failure: RequestFailure, text: str) -> None:
        super().__init__(text)
        self.failure = failure
