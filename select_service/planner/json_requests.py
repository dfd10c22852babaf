"""What all routes of a planner share: reading JSON bodies, and refusals as answers."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from select_service.errors import PortableError
from select_service.spelling import shown
from select_service.unreadable_json import UNREADABLE

BODY_BYTES_MAX = 1 << 16

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]


class Refused(PortableError):
    """An answer of 4xx or 5xx."""

    def __init__(self, status: int, code: str, error: str) -> None:
        super().__init__(error)
        self.status, self.code = status, code


def answered(handler: Handler) -> Handler:
    """Return the handler with its refusals as answers."""

    async def with_refusals(request: Request) -> Response:
        try:
            return await handler(request)
        except Refused as refused:
            return refusal(refused.status, refused.code, str(refused))

    return with_refusals


def refusal(status: int, code: str, error: str) -> Response:
    """Return the one form of every refusal."""
    return json_response({"error": error, "code": code}, status)


def json_response(content: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


async def body_as(
    request: Request, form: type[T], explained: Callable[[str], str], *, optional: bool = False
) -> T:
    """Read and decode the body of a request.  Raises Refused.

    A type other than JSON is refused: browsers send no JSON to a foreign origin unasked.

    explained: a reader's words for what msgspec says of a wrong body
    optional: whether an empty body of any type stands for an empty object
    """
    content = bytearray()
    try:
        async for part in request.stream():
            content += part
            if len(content) > BODY_BYTES_MAX:
                raise Refused(413, "body_too_large", f"at most {BODY_BYTES_MAX} bytes")
    except ClientDisconnect:
        raise Refused(400, "body_incomplete", "the connection ended before the body") from None
    if not content and optional:
        return msgspec.json.decode(b"{}", type=form)
    _check_content_type(request.headers.get("content-type", ""))
    try:
        return msgspec.json.decode(bytes(content), type=form)
    except msgspec.ValidationError as error:
        raise Refused(422, "invalid_body", explained(str(error))) from None
    except UNREADABLE as error:
        raise Refused(400, "malformed_json", f"not JSON: {error}") from None


def _check_content_type(given: str) -> None:
    kind = given.partition(";")[0].strip().lower()
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return
    seen = f"got `{shown(given)}`" if given else "got none"
    raise Refused(
        415,
        "unsupported_media_type",
        f"expected a JSON body and its content type `application/json`, {seen}; "
        "with curl: -H 'content-type: application/json'",
    )
