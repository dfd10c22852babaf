"""An answer that is no good one, and what it means for the call.  PURE."""

from enum import Enum, auto
from typing import Any

import msgspec

from select_service.client.errors import Refused
from select_service.client.exchange import Answer
from select_service.unreadable_json import UNREADABLE

TEXT_CHARS_MAX = 1000


class Next(Enum):
    """What to do about a refusal."""

    GIVE_UP = auto()
    LATER = auto()
    """The same again, when the time that it names has passed."""
    ELSEWHERE = auto()
    """Nothing was done, and another selector may say something else."""
    LEAVE = auto()
    """Nothing was done, and the selector serves nobody now."""
    UNCERTAIN = auto()
    """Whether it was done is not known: a proxy or a bug has answered for the selector."""


_ELSEWHERE = {"no_schedulable_workers", "no_eligible_rank", "capacity_exceeded"}


def refusal_of(answer: Answer) -> tuple[Refused, Next]:
    """The refusal as an exception, and what it means."""
    said = _object(answer.content)
    after_s = _seconds(answer.headers.get("retry-after"))
    if isinstance(said.get("code"), str):
        text = "; ".join([str(said.get("error")), *_warnings(said)])
        refused = Refused(answer.status, said["code"], text, after_s, said.get("details"))
    elif said.get("type") == "service_unavailable":  # the one refusal of another form
        refused = Refused(answer.status, said["type"], str(said.get("message")), after_s)
    else:
        text = answer.content[:TEXT_CHARS_MAX].decode(errors="replace")
        refused = Refused(answer.status, "not_of_the_service", text, after_s)
    return refused, _next(refused)


def _next(refused: Refused) -> Next:
    if refused.status < 500:
        return Next.GIVE_UP
    if refused.code in ("not_of_the_service", "internal_error"):
        return Next.UNCERTAIN
    if refused.code == "shutting_down":
        return Next.LEAVE
    if refused.retry_after_s is not None:
        return Next.LATER
    return Next.ELSEWHERE if refused.code in _ELSEWHERE else Next.GIVE_UP


def _warnings(said: dict[str, Any]) -> list[str]:
    """Return what is said of fields that no route knows: often the cause of the refusal."""
    warnings = said.get("warnings")
    return list(map(str, warnings)) if isinstance(warnings, list) else []


def _object(content: bytes) -> dict[str, Any]:
    try:
        said = msgspec.json.decode(content)
    except UNREADABLE:
        return {}
    return said if isinstance(said, dict) else {}


def _seconds(text: str | None) -> float | None:
    """Of a `retry-after`; a date, which no selector sends, counts as none."""
    return float(text) if text is not None and text.isdecimal() else None
