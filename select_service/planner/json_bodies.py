"""Helpers of all routes of a planner: JSON bodies and error answers."""

from collections.abc import Callable
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from select_service.base.decode_errors import DECODE_ERRORS
from select_service.base.errors import PicklableError
from select_service.base.suggestions import printable_name

BODY_BYTES_MAX = 1 << 16

T = TypeVar("T")


class PlannerRefusal(PicklableError):
    """Error answer with status 4xx or 5xx."""

    def __init__(self, status: int, code: str, error: str) -> None:
        super().__init__(error)
        self.status, self.code = status, code


async def answer_refusal(request: Request, refused: Exception) -> Response:
    """Answer with a refusal, as the application's handler of `PlannerRefusal`."""
    assert isinstance(refused, PlannerRefusal)
    return error_response(refused.status, refused.code, str(refused))


def error_response(status: int, code: str, error: str) -> Response:
    """Return an error answer in the common form."""
    return json_answer({"error": error, "code": code}, status)


def json_answer(content: object, status: int = 200) -> Response:
    """Return an answer with a JSON body."""
    return Response(msgspec.json.encode(content), status, media_type="application/json")


async def read_json_body(
    request: Request, form: type[T], explained: Callable[[str], str], *, optional: bool = False
) -> T:
    """Read and decode the body of a request.  Raises PlannerRefusal.

    A type other than JSON is refused: browsers send no JSON to a foreign origin without a
    preflight.

    explained: function that rewords msgspec's message for a wrong body
    optional: whether an empty body of any type counts as an empty object
    """
    content = bytearray()
    try:
        # Counted while reading: a client may send more than its content-length, or none at all.
        async for part in request.stream():
            content += part
            if len(content) > BODY_BYTES_MAX:
                raise PlannerRefusal(
                    413, "body_too_large", f"body is larger than {BODY_BYTES_MAX} bytes"
                )
    except ClientDisconnect:
        raise PlannerRefusal(
            400, "body_incomplete", "the connection closed before the end of the body"
        ) from None
    if not content and optional:
        return msgspec.json.decode(b"{}", type=form)
    _check_content_type(request.headers.get("content-type", ""))
    try:
        return msgspec.json.decode(bytes(content), type=form)
    except msgspec.ValidationError as error:
        raise PlannerRefusal(422, "invalid_body", explained(str(error))) from None
    except DECODE_ERRORS as error:
        raise PlannerRefusal(400, "malformed_json", f"body is not valid JSON: {error}") from None


def _check_content_type(given: str) -> None:
    """Raise PlannerRefusal for a body that is not declared as JSON."""
    kind = given.partition(";")[0].strip().lower()
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return
    seen = f"got `{printable_name(given)}`" if given else "got none"
    raise PlannerRefusal(
        415,
        "unsupported_media_type",
        f"expected a JSON body and its content type `application/json`, {seen}; "
        "with curl: -H 'content-type: application/json'",
    )
