"""What came of one request to an engine, in the words of health.

    refused, reset, closed before a status, unknown name, TLS      connect
    no complete answer in time                                     timeout
    5xx                                                            http_5xx
    429, 503 of an engine that has too much to do                  busy
    other 4xx, 3xx, an address that must not be connected to       misconfigured
    200 without an answer that can be read                         malformed
    200 with one                                                   answer, which the core judges

An engine that says that it is busy is not sick, and a request that it does not understand is our
fault.
"""

import re

import msgspec

from select_service.core.health.checked import Attempt
from select_service.core.health.kinds import Came
from select_service.edge.health.answers import MalformedAnswer, completion, generated
from select_service.edge.health.requests import GENERATE, Form
from select_service.edge.http_error import Failure, HttpError
from select_service.edge.http_post import Reply
from select_service.unreadable_json import UNREADABLE

WHY_CHARS_MAX = 200
BUSY_BYTES_MAX = 4096
"""Of the text of a 503 in which words are looked for."""
_BUSY = re.compile(rb"overload|queue[ _-]*(is[ _-]*)?full", re.IGNORECASE)
REFUSAL_BYTES_MAX = 16_384
"""The text of a longer refusal is not shown."""
_CAME: dict[Failure, Came] = {
    "unreachable": Came.CONNECT,
    "timeout": Came.TIMEOUT,
    "unreadable": Came.MALFORMED,
    "not_allowed": Came.MISCONFIGURED,
}


def attempt_failed(error: HttpError) -> Attempt:
    """There was no answer at all."""
    return _without_answer(_CAME[error.failure], str(error))


def attempt_of(
    reply: Reply, form: Form, by_ids: bool, counts_latency: bool, host_ms: float
) -> Attempt:
    """by_ids: is the answer to be compared with ids, if it has any?"""
    if reply.status != 200:
        return _without_answer(_came_of(reply), f"status {reply.status}{_refusal_text(reply.body)}")
    if reply.fault is not None:
        return _without_answer(Came.MALFORMED, reply.fault)
    try:
        read = generated(reply.body) if form in GENERATE else completion(reply.body, by_ids)
    except MalformedAnswer as error:
        return _without_answer(Came.MALFORMED, str(error))
    return Attempt(
        Came.ANSWER,
        reply.seconds * 1000.0,
        read.answer,
        read.engine,
        read.weight_version,
        counts_latency,
        host_ms=host_ms,
    )


def _refusal_text(body: bytes) -> str:
    """Return the engine's own words, where vLLM, SGLang and FastAPI write them; else nothing."""
    try:
        refusal = msgspec.json.decode(body[:REFUSAL_BYTES_MAX], type=dict[str, object])
    except UNREADABLE:
        return ""
    error = refusal.get("error")
    inner = error if isinstance(error, dict) else refusal
    texts = (inner.get("message"), error, refusal.get("detail"))
    return next((f": {text}" for text in texts if isinstance(text, str) and text), "")


def _came_of(reply: Reply) -> Came:
    status = reply.status
    if status == 429 or (status == 503 and _is_busy(reply)):
        return Came.BUSY
    if status >= 500:
        return Came.HTTP_5XX
    return Came.MISCONFIGURED if status >= 300 else Came.MALFORMED


def _is_busy(reply: Reply) -> bool:
    return reply.retry_after or _BUSY.search(reply.body, 0, BUSY_BYTES_MAX) is not None


def _without_answer(came: Came, why: str) -> Attempt:
    return Attempt(came, counts_latency=False, why=why[:WHY_CHARS_MAX])
