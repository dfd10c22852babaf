"""How a call to selectors can fail: one refused it, or none answered."""

from typing import Any

from select_service.errors import PortableError


class SelectorError(PortableError):
    """Base of all that a selector's client raises on purpose."""


class Refused(SelectorError):
    """A selector has answered and said no; nothing was changed there.

    status: of HTTP
    code: kind of the refusal, for programs; as docs/api.md lists them
    text: what was wrong, for people
    retry_after_s: seconds before which to ask again is of no use; None: it does not say
    details: what the refusal says besides
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
    """No selector has answered in time.

    may_be_done: one may have got the request, and its answer was lost
    """

    def __init__(self, text: str, *, may_be_done: bool = False) -> None:
        super().__init__(text)
        self.may_be_done = may_be_done
