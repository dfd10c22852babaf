"""Errors of the client: a selector refused a call, or no selector answered."""

from typing import Any

from select_service.base.errors import PicklableError


class SelectorError(PicklableError):
    """Base of all exceptions that the client raises on purpose."""


class Refused(SelectorError):
    """A selector refused the call and changed nothing.

    status: HTTP status
    code: machine-readable kind of the refusal, as listed in docs/reference/api.md
    text: explanation for people
    retry_after_s: seconds before which another attempt is useless; None means unknown
    details: further fields of the refusal
    """

    def __init__(
        self,
        status: int,
        code: str,
        text: str,
        retry_after_s: float | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(f"{status} {code}: {text}")
        self.status = status
        self.code = code
        self.text = text
        self.retry_after_s = retry_after_s
        self.details = details or {}


class Unavailable(SelectorError):
    """No selector answered in time.

    may_be_done: whether a selector may have executed the request and its answer was lost
    """

    def __init__(self, text: str, *, may_be_done: bool = False) -> None:
        super().__init__(text)
        self.may_be_done = may_be_done
