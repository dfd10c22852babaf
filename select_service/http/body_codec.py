"""Decoding of request bodies and encoding of responses, with all limits on what is read.

The order of checks is part of the interface: content type (415), size (413), JSON (400), schema
(422), then the service.
"""

import asyncio
import re
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from select_service.auth.limit_shares import UNKEYED_HOLDER, Holder, SharedLimit
from select_service.base.errors import (
    BodyTooLarge,
    InvalidBody,
    MalformedJson,
    Overloaded,
    SelectError,
    ShuttingDown,
    Unauthenticated,
    UnsupportedMediaType,
)
from select_service.base.shape_errors import readable_error
from select_service.base.suggestions import printable_name
from select_service.http.client_connection import ClientGone
from select_service.http.duplicate_keys import TooManyStrings, find_duplicate_key
from select_service.http.lenient_decode import BodySchema
from select_service.http.request_warnings import add_warnings
from select_service.schemas.admission import OverloadedBody
from select_service.schemas.common import ErrorBody

BODY_BYTES_MAX = 8 * 1024 * 1024
BODY_BYTES_IN_FLIGHT_MAX = 256 * 1024 * 1024
"""Total bytes of incomplete bodies held at one time, over all connections."""
BODY_BYTES_FREE = 64 * 1024
"""Bytes of each body that do not count, so that slow large bodies never block small bodies."""

BODY_STRINGS_MAX = 65_536
"""Most strings of a body, including keys."""
_MANY_STRINGS_BYTES = 2 * BODY_STRINGS_MAX
"""Length up to which a body cannot exceed BODY_STRINGS_MAX."""
_MANY_STRINGS = f"the JSON body has more than {BODY_STRINGS_MAX} strings: split the request"

LONG_BODY_BYTES = 128 * 1024
"""Longer bodies are decoded in one iteration of the event loop and served in the next."""

HOLDER_SCOPE_KEY = "holder"
"""Key of the ASGI scope with the holder of the request's resources; absent means none."""

T = TypeVar("T")

_GZIP = b"\x1f\x8b"
_JSON_TYPE = re.compile(rb"application/(json|.*\+json)", re.DOTALL)
_encode_json = msgspec.json.Encoder().encode
_validate_json = msgspec.json.Decoder(msgspec.Raw).decode
"""Validates JSON without building objects."""


BODY_BUDGET = SharedLimit(
    "body_bytes",
    BODY_BYTES_IN_FLIGHT_MAX,
    "bytes of request bodies that are being read",
    "send each body without pauses, and fewer large bodies at one time",
)
"""Budget of bytes in incomplete request bodies."""


async def read_body(request: Request, form: BodySchema[T], *, optional: bool = False) -> T:
    """Read and decode the body.  Raises SelectError, or ClientGone.

    optional: a missing or empty body, of any content type, is treated as an empty object
    """
    kind, size = _declared_content(request)
    if size or not optional:
        _check_content_type(kind)
    if size > BODY_BYTES_MAX:
        raise _body_too_large()
    body = await _collect_body(request)
    if optional:
        if not body:
            return form.decode(b"{}")
        _check_content_type(kind)
    value = decode_body(body, form)
    if value is None:
        value = _decode_leniently(request, body, form)
    # Decoding took its time already: let other connections run before the placement.
    if len(body) > LONG_BODY_BYTES:
        await _yield_to_loop()
    return value


def json_response(body: Any, status: int = 200) -> Response:
    """Return a response with the JSON of the body."""
    return Response(_encode_json(body), status, media_type="application/json")


def error_response(error: SelectError) -> Response:
    """Return the HTTP response of an error; the only place of this conversion."""
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


def _declared_content(request: Request) -> tuple[bytes, int]:
    """Return content type and content length from the head; empty and 0 when missing."""
    kind, size = b"", 0
    for name, value in request.scope["headers"]:
        if name == b"content-type":
            kind = kind or value
        elif name == b"content-length" and value.strip().isdigit():
            size = int(value)
    return kind, size


def _check_content_type(given: bytes) -> None:
    """Raise UnsupportedMediaType unless the content type is JSON."""
    if given == b"application/json":
        return
    kind = given.split(b";", 1)[0].strip().lower()
    if not _JSON_TYPE.fullmatch(kind):
        seen = f"`{printable_name(given.decode('latin-1'))}`" if given else "no content type"
        raise UnsupportedMediaType(
            "expected a JSON body with content type `application/json`, "
            f"got {seen}; with curl: -H 'content-type: application/json'"
        )


async def _collect_body(request: Request) -> bytes:
    """Return the whole body.  The protocol disconnects slow senders (see http.protocol).

    Requests are cancelled only at shutdown; an incomplete request then gets an error.
    """
    chunks: list[bytes] = []
    size = counted = 0
    holder: Holder = request.scope.get(HOLDER_SCOPE_KEY, UNKEYED_HOLDER)
    try:
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > BODY_BYTES_MAX:
                raise _body_too_large()
            chunks.append(chunk)
            if not message.get("more_body", False):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)
            # Incomplete bodies only: a complete body is decoded at once and needs no budget.
            if size - counted > BODY_BYTES_FREE:
                BODY_BUDGET.take(holder, size - BODY_BYTES_FREE - counted)
                counted = size - BODY_BYTES_FREE
    except asyncio.CancelledError:
        raise ShuttingDown("the service is shutting down; nothing was done") from None
    finally:
        BODY_BUDGET.give_back(holder, counted)


async def _yield_to_loop() -> None:
    """Let other tasks run first."""
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        raise ShuttingDown("the service is shutting down; nothing was done") from None


def _body_too_large() -> BodyTooLarge:
    return BodyTooLarge(
        f"Failed to buffer the request body: length limit exceeded ({BODY_BYTES_MAX} bytes)"
    )


def decode_body(body: bytes, form: BodySchema[T]) -> T | None:
    """Return the decoded body, or None if the body does not match the schema.

    Raises MalformedJson, and InvalidBody for a duplicate field.
    """
    try:
        if len(body) > _MANY_STRINGS_BYTES:
            _refuse_many_strings(body)
        value = form.decode(body)
        _refuse_duplicate_keys(body)
    except msgspec.ValidationError:
        return None
    except _UNREADABLE as error:
        raise _explain_malformed(error, body) from None
    return value


def _decode_leniently(request: Request, body: bytes, form: BodySchema[T]) -> T:
    """Decode leniently, attaching warnings for unknown fields.

    Raises MalformedJson or InvalidBody.
    """
    left = body
    try:
        left, unknown = form.prune_body(body)
        if unknown:
            add_warnings(request, unknown)
        value = form.decode(left)
        _refuse_duplicate_keys(body)  # after decoding: it can only read JSON
        return value
    except msgspec.ValidationError as error:
        try:
            text = readable_error(error, left, form.type)
        except _UNREADABLE as unreadable:  # behind the value of the wrong type
            raise _explain_malformed(unreadable, body) from None
        raise InvalidBody(text) from None
    except _UNREADABLE as error:
        raise _explain_malformed(error, body) from None


_UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)


def _explain_malformed(error: Exception, body: bytes) -> MalformedJson:
    """Return the error that explains why a body is not JSON."""
    if not body.strip():
        return MalformedJson("the request body is empty; expected a JSON object")
    # A common client mistake, which would otherwise read as a confusing JSON error.
    if body.startswith(_GZIP):
        return MalformedJson("the request body is compressed: send it uncompressed")
    if isinstance(error, UnicodeDecodeError):
        return MalformedJson(f"the request body is not UTF-8: {error.reason}")
    if isinstance(error, RecursionError):
        return MalformedJson("the JSON body is nested too deeply")
    return MalformedJson(f"failed to parse the request body as JSON: {error}")


def _refuse_many_strings(body: bytes) -> None:
    """Refuse bodies with too many strings before a decoder creates an object for each.

    Counts quotes only, so that slightly more strings may pass.  Raises InvalidBody, and the
    decoder's errors for invalid JSON.
    """
    quotes = body.count(b'"')
    if quotes > 2 * BODY_STRINGS_MAX and quotes - body.count(b'\\"') > 2 * BODY_STRINGS_MAX:
        # First report invalid JSON as such: quotes in garbage do not count as strings.
        _validate_json(body)
        raise InvalidBody(_MANY_STRINGS)


def _refuse_duplicate_keys(body: bytes) -> None:
    """Raise InvalidBody for a duplicate key, or for too many strings."""
    try:
        key = find_duplicate_key(body, BODY_STRINGS_MAX)
    except TooManyStrings:
        raise InvalidBody(_MANY_STRINGS) from None
    if key is not None:
        raise InvalidBody(f"duplicate field `{key[:64]}`")
