"""Bytes of a request -> a checked body, and a body -> a response; every bound on what is read.

The order of checks is part of the interface: content type (415), size (413), JSON (400), shape
(422), then the service.
"""

import asyncio
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from select_service.access.shares import NOBODY, Holder, SharedLimit
from select_service.bodies.admission import OverloadedBody
from select_service.bodies.common import ErrorBody
from select_service.errors import (
    BodyTooLarge,
    InvalidBody,
    MalformedJson,
    Overloaded,
    SelectError,
    ShuttingDown,
    Unauthenticated,
    UnsupportedMediaType,
)
from select_service.http.connection import ClientGone
from select_service.http.duplicates import TooManyStrings, duplicate_key
from select_service.http.request_warnings import warn
from select_service.http.second_reading import BodyForm
from select_service.shape_errors import in_words
from select_service.spelling import shown

BODY_BYTES_MAX = 8 * 1024 * 1024
BODY_BYTES_IN_FLIGHT_MAX = 256 * 1024 * 1024
"""Bytes of incomplete bodies that are held at one time, over all connections."""
BODY_BYTES_FREE = 64 * 1024
"""What a body may hold without counting, so that slow large bodies never refuse a small one."""

BODY_STRINGS_MAX = 65_536
"""Strings, keys included, of one body."""
_MANY_STRINGS_BYTES = 2 * BODY_STRINGS_MAX
"""Shorter bodies have fewer."""
_MANY_STRINGS = f"the JSON body has more than {BODY_STRINGS_MAX} strings"

BODY_BYTES_AT_ONCE = 128 * 1024
"""A longer one is decoded in one turn of the event loop and served in the next."""

HOLDER = "holder"
"""Of a scope: who has what the request uses; not there: nobody."""

T = TypeVar("T")

_ENCODER = msgspec.json.Encoder()
_encode = _ENCODER.encode
_passed_over = msgspec.json.Decoder(msgspec.Raw).decode
"""Checks that a text is JSON, and makes nothing of it."""


BODY_BUDGET = SharedLimit(
    "body_bytes",
    BODY_BYTES_IN_FLIGHT_MAX,
    "bytes of request bodies that are being read",
    "send bodies whole and at once, and fewer at one time",
)
"""How many bytes of request bodies are held right now."""


async def body_as(request: Request, form: BodyForm[T], *, optional: bool = False) -> T:
    """Read and decode the body.  Raises SelectError, or ClientGone.

    optional: no body, or an empty one of whatever type, is the same as an empty object
    """
    kind, size = _declared(request)
    if size or not optional:
        _check_content_type(kind)
    if size > BODY_BYTES_MAX:
        raise _too_large()
    body = await _read(request)
    if optional:
        if not body:
            return form.decode(b"{}")
        _check_content_type(kind)
    value = decoded(body, form)
    if value is None:
        value = _second_reading(request, body, form)
    if len(body) > BODY_BYTES_AT_ONCE:
        await _next_turn()
    return value


def json_response(body: Any, status: int = 200) -> Response:
    return Response(_encode(body), status, media_type="application/json")


def error_response(error: SelectError) -> Response:
    """The one place where a refusal becomes HTTP."""
    body: ErrorBody | OverloadedBody = ErrorBody(error=str(error), code=error.code)
    if isinstance(error, Overloaded):
        body = OverloadedBody(message=str(error))
    elif error.details is not None:
        body = ErrorBody(error=str(error), code=error.code, details=error.details)
    response = json_response(body, error.status)
    if error.retry_after_s is not None:
        response.headers["retry-after"] = str(error.retry_after_s)
    if isinstance(error, Unauthenticated):
        response.headers["www-authenticate"] = "Bearer"
    return response


def _declared(request: Request) -> tuple[bytes, int]:
    """Media type and number of bytes as the head has them; nothing and 0 when it does not."""
    kind, size = b"", 0
    for name, value in request.scope["headers"]:
        if name == b"content-type":
            kind = kind or value
        elif name == b"content-length" and value.strip().isdigit():
            size = int(value)
    return kind, size


def _check_content_type(given: bytes) -> None:
    if given == b"application/json":
        return
    kind = given.split(b";", 1)[0].strip().lower()
    if kind != b"application/json" and not (
        kind.startswith(b"application/") and kind.endswith(b"+json")
    ):
        seen = f"got `{shown(given.decode('latin-1'))}`" if given else "got none"
        raise UnsupportedMediaType(
            "expected a JSON body and its content type `application/json`, "
            f"{seen}; with curl: -H 'content-type: application/json'"
        )


async def _read(request: Request) -> bytes:
    """The whole body.  A slow sender is cut off by the protocol (see http.protocol).

    Only the end of the process cancels a request; one that is still coming in is refused then.
    """
    chunks: list[bytes] = []
    size = counted = 0
    holder: Holder = request.scope.get(HOLDER, NOBODY)
    try:
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > BODY_BYTES_MAX:
                raise _too_large()
            chunks.append(chunk)
            if not message.get("more_body", False):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)
            if size - counted > BODY_BYTES_FREE:
                BODY_BUDGET.take(holder, size - BODY_BYTES_FREE - counted)
                counted = size - BODY_BYTES_FREE
    except asyncio.CancelledError:
        raise ShuttingDown("the service is ending; nothing was done") from None
    finally:
        BODY_BUDGET.give_back(holder, counted)


async def _next_turn() -> None:
    """Others are served first."""
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        raise ShuttingDown("the service is ending; nothing was done") from None


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(
        f"Failed to buffer the request body: length limit exceeded ({BODY_BYTES_MAX} bytes)"
    )


def decoded(body: bytes, form: BodyForm[T]) -> T | None:
    """The body, or None when it is not of the shape of its type.  Raises MalformedJson, and
    InvalidBody for a field that is given twice."""
    try:
        if len(body) > _MANY_STRINGS_BYTES:
            _refuse_many_strings(body)
        value = form.decode(body)
        _refuse_duplicate_keys(body)
    except msgspec.ValidationError:
        return None
    except _UNREADABLE as error:
        raise _malformed(error, body) from None
    return value


def _second_reading(request: Request, body: bytes, form: BodyForm[T]) -> T:
    """Raises MalformedJson or InvalidBody."""
    left = body
    try:
        left, unknown = form.pruned(body)
        _refuse_duplicate_keys(body)
        if unknown:
            warn(request, unknown)
        return form.decode(left)
    except msgspec.ValidationError as error:
        raise InvalidBody(in_words(error, left, form.type)) from None
    except _UNREADABLE as error:
        raise _malformed(error, body) from None


_GZIP = b"\x1f\x8b"

_UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)


def _malformed(error: Exception, body: bytes) -> MalformedJson:
    if not body.strip():
        return MalformedJson("the request body is empty; expected a JSON object")
    if body.startswith(_GZIP):
        return MalformedJson("the request body is compressed; send it as it is")
    if isinstance(error, UnicodeDecodeError):
        return MalformedJson(f"the request body is not UTF-8: {error.reason}")
    if isinstance(error, RecursionError):
        return MalformedJson("the JSON body is nested too deeply")
    return MalformedJson(f"failed to parse the request body as JSON: {error}")


def _refuse_many_strings(body: bytes) -> None:
    """Before a decoder makes an object of each.  A few may pass: quotes are only counted.

    Raises InvalidBody, and what a decoder raises for what is no JSON.
    """
    quotes = body.count(b'"')
    if quotes > 2 * BODY_STRINGS_MAX and quotes - body.count(b'\\"') > 2 * BODY_STRINGS_MAX:
        _passed_over(body)
        raise InvalidBody(_MANY_STRINGS)


def _refuse_duplicate_keys(body: bytes) -> None:
    try:
        key = duplicate_key(body, BODY_STRINGS_MAX)
    except TooManyStrings:
        raise InvalidBody(_MANY_STRINGS) from None
    if key is not None:
        raise InvalidBody(f"duplicate field `{key[:64]}`")
