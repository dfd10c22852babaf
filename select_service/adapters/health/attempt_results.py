"""Translation of a canary response to a health outcome.

    refused, reset, closed before a status, unknown name, TLS      connect
    no complete response in time                                   timeout
    5xx                                                            http_5xx
    429, or 503 of an overloaded engine                            busy
    other 4xx, 3xx, an address forbidden by the egress policy      misconfigured
    200 without a readable answer                                  malformed
    200 with an answer                                             answer, compared by the core

An engine that reports overload is not unhealthy, and a rejected request is a fault of this service.
"""

import re

import msgspec

from select_service.adapters.health.canary_requests import GENERATE, Form
from select_service.adapters.health.canary_responses import (
    MalformedResponse,
    parse_completion,
    parse_generated,
)
from select_service.adapters.probe_http import TimedResponse
from select_service.base.decode_errors import DECODE_ERRORS
from select_service.core.health.checks.check_state import Attempt
from select_service.core.health.health_kinds import AttemptResult
from select_service.net.http_client.http_error import HttpError, HttpFailure

WHY_CHARS_MAX = 200
BUSY_BYTES_MAX = 4096
"""Number of bytes of a 503 body searched for overload messages."""
_BUSY = re.compile(rb"overload|queue[ _-]*(is[ _-]*)?full", re.IGNORECASE)
REFUSAL_BYTES_MAX = 16_384
"""Size limit of a displayed error body."""
_OUTCOME_OF_FAILURE: dict[HttpFailure, AttemptResult] = {
    "unreachable": AttemptResult.CONNECT,
    "timeout": AttemptResult.TIMEOUT,
    "unreadable": AttemptResult.MALFORMED,
    "not_allowed": AttemptResult.MISCONFIGURED,
}


def make_failed_attempt(error: HttpError) -> Attempt:
    """Return the attempt of a request without a response."""
    return _without_answer(_OUTCOME_OF_FAILURE[error.metric_label], str(error))


def make_attempt(
    reply: TimedResponse, form: Form, by_ids: bool, counts_latency: bool, host_ms: float
) -> Attempt:
    """Return the attempt of a response.

    by_ids: True compares tokens by id if the response has ids
    """
    if reply.status != 200:
        return _without_answer(
            _outcome_of(reply), f"status {reply.status}{_refusal_text(reply.body)}"
        )
    if reply.fault is not None:
        return _without_answer(AttemptResult.MALFORMED, reply.fault)
    try:
        read = (
            parse_generated(reply.body)
            if form in GENERATE
            else parse_completion(reply.body, by_ids)
        )
    except MalformedResponse as error:
        return _without_answer(AttemptResult.MALFORMED, str(error))
    return Attempt(
        AttemptResult.ANSWER,
        reply.seconds * 1000.0,
        read.answer,
        read.engine,
        read.weight_version,
        counts_latency,
        host_ms=host_ms,
    )


def _refusal_text(body: bytes) -> str:
    """Return the error message of vLLM, SGLang or FastAPI; empty if there is none."""
    try:
        refusal = msgspec.json.decode(body[:REFUSAL_BYTES_MAX], type=dict[str, object])
    except DECODE_ERRORS:
        return ""
    error = refusal.get("error")
    inner = error if isinstance(error, dict) else refusal
    texts = (inner.get("message"), error, refusal.get("detail"))
    return next((f": {text}" for text in texts if isinstance(text, str) and text), "")


def _outcome_of(reply: TimedResponse) -> AttemptResult:
    status = reply.status
    # Load balancers answer 503 for a dead engine too: only a stated overload counts as busy.
    if status == 429 or (status == 503 and _is_busy(reply)):
        return AttemptResult.BUSY
    if status >= 500:
        return AttemptResult.HTTP_5XX
    return AttemptResult.MISCONFIGURED if status >= 300 else AttemptResult.MALFORMED


def _is_busy(reply: TimedResponse) -> bool:
    return reply.retry_after or _BUSY.search(reply.body, 0, BUSY_BYTES_MAX) is not None


def _without_answer(came: AttemptResult, why: str) -> Attempt:
    return Attempt(came, counts_latency=False, why=why[:WHY_CHARS_MAX])
