"""Classes of refusals: the next step of a call after an answer that is not good.  PURE."""

from enum import Enum, auto
from typing import Any

import msgspec

from select_service.base.decode_errors import DECODE_ERRORS
from select_service.client.errors import Refused
from select_service.client.transport import ClientResponse

TEXT_CHARS_MAX = 1000


class NextStep(Enum):
    """Next step of a call after a refusal."""

    GIVE_UP = auto()
    LATER = auto()
    """Repeat at the same selector after the time in `retry-after`."""
    ELSEWHERE = auto()
    """Nothing has changed, and another selector may accept."""
    LEAVE = auto()
    """Nothing has changed, and the selector serves no requests now."""
    UNCERTAIN = auto()
    """The effect is unknown: a proxy or a bug answered instead of the selector."""


_ELSEWHERE = {"no_schedulable_workers", "no_eligible_rank", "capacity_exceeded"}


def classify_refusal(answer: ClientResponse) -> tuple[Refused, NextStep]:
    """Return a refusal as an exception, with the next step."""
    said = _decoded_object(answer.content)
    after_s = _retry_after_s(answer.headers.get("retry-after"))
    if isinstance(said.get("code"), str):
        text = "; ".join([str(said.get("error")), *_warning_texts(said)])
        refused = Refused(answer.status, said["code"], text, after_s, said.get("details"))
    elif said.get("type") == "service_unavailable":  # the only refusal of another form
        refused = Refused(answer.status, said["type"], str(said.get("message")), after_s)
    else:
        text = answer.content[:TEXT_CHARS_MAX].decode(errors="replace")
        refused = Refused(answer.status, "not_of_the_service", text, after_s)
    return refused, _next_step(refused)


def _next_step(refused: Refused) -> NextStep:
    if refused.status < 500 and refused.code != "queue_full":
        return NextStep.GIVE_UP
    if refused.code == "deadline_exceeded":
        return NextStep.GIVE_UP
    # A proxy's 502 or 504 may follow a request that the selector executed.
    if refused.code in ("not_of_the_service", "internal_error"):
        return NextStep.UNCERTAIN
    if refused.code == "shutting_down":
        return NextStep.LEAVE
    if refused.retry_after_s is not None:
        return NextStep.LATER
    return NextStep.ELSEWHERE if refused.code in _ELSEWHERE else NextStep.GIVE_UP


def _warning_texts(said: dict[str, Any]) -> list[str]:
    """Return the warnings about unknown fields, which are often the cause of a refusal."""
    warnings = said.get("warnings")
    return list(map(str, warnings)) if isinstance(warnings, list) else []


def _decoded_object(content: bytes) -> dict[str, Any]:
    try:
        said = msgspec.json.decode(content)
    except DECODE_ERRORS:
        return {}
    return said if isinstance(said, dict) else {}


def _retry_after_s(text: str | None) -> float | None:
    """Return the seconds of `retry-after`; None for a date, which no selector sends."""
    return float(text) if text is not None and text.isdecimal() else None
