"""Checks of clients' requests and servers' answers over HTTP."""

from types import SimpleNamespace

import msgspec
from starlette.requests import Request

from select_service.api.documentation import ENDPOINT_GROUPS
from select_service.api.request_parameters import parse_flag, parse_number, parse_page, parse_query
from select_service.base.errors import SelectError
from select_service.core.placement.prompt import read_booked_prompt, read_prompt
from select_service.http.body_codec import _decode_leniently, decode_body
from select_service.http.lenient_decode import BodySchema
from select_service.net.http_client.response_parser import ResponseParser, UnreadableResponse
from select_service.schemas.prompts import PromptFields

ROUTES = [each.route for group in ENDPOINT_GROUPS for each in group.endpoints]
BODIES = [route.body for route in ROUTES if route.body is not None]
SCHEMAS = [BodySchema(body.type) for body in BODIES]
QUERIES = [[parameter.name for parameter in route.query] for route in ROUTES if route.query]
BLOCK_SIZE = 16


def check_refusal(error: SelectError) -> None:
    assert 400 <= error.status < 500
    assert str(error)


def check_bodies(data: bytes) -> None:
    """Decode a body, and require the same value from strict and lenient decoding.

    The first byte chooses the route.
    """
    if not data:
        return
    schema, body = SCHEMAS[data[0] % len(SCHEMAS)], data[1:]
    request = SimpleNamespace(scope={}, state=SimpleNamespace())
    try:
        value = decode_body(body, schema)
        lenient = _decode_leniently(request, body, schema)
    except SelectError as error:
        check_refusal(error)
        return
    if value is not None:
        assert msgspec.json.encode(value) == msgspec.json.encode(lenient)
    if isinstance(lenient, PromptFields):
        for read in (read_prompt, read_booked_prompt):
            try:
                read(lenient, BLOCK_SIZE, 0)
            except SelectError as error:
                check_refusal(error)


def body_seeds() -> list[bytes]:
    """Return the routes' examples, an empty object for each route, and a deep object."""
    examples = [
        bytes([number]) + msgspec.json.encode(example)
        for number, body in enumerate(BODIES)
        for example in body.examples.values()
    ]
    deep = b'{"worker": ' + b"[" * 2000
    return [*examples, *(bytes([n]) + b"{}" for n in range(len(BODIES))), b"\0" + deep]


def check_queries(data: bytes) -> None:
    """Parse the parameters of a query string; the first byte chooses the route."""
    if not data:
        return
    names = QUERIES[data[0] % len(QUERIES)]
    request = Request({"type": "http", "query_string": data[1:], "headers": [], "state": {}})
    try:
        query = parse_query(request, names)
        for name in names:
            for read in (
                lambda q, n=name: parse_number(q, n, 0, 1000),
                lambda q, n=name: parse_flag(q, n),
                lambda q, n=name: parse_page(q),
            ):
                try:
                    read(query)
                except SelectError as error:
                    check_refusal(error)
    except SelectError as error:
        check_refusal(error)


def query_seeds() -> list[bytes]:
    return [b"\0limit=10&after=7&model_name=a%20b", b"\1x=1&x=2&y=%ff", b"\2=&&a&=%"]


def check_responses(data: bytes) -> None:
    """Require that a response reads the same in one and in two pieces."""
    if not data:
        return
    content = data[1:]
    middle = len(content) * data[0] // 256
    assert _read_response([content]) == _read_response([content[:middle], content[middle:]])


def _read_response(pieces: list[bytes]) -> object:
    parser = ResponseParser()
    try:
        for piece in pieces:
            if piece and not parser.is_complete:
                parser.feed_piece(memoryview(piece))
        parser.end_of_connection()
        if not parser.is_complete:
            return "incomplete"
        return parser.status, parser.headers, parser.take_body()
    except UnreadableResponse:
        return "unreadable"
    finally:
        parser.close()


def response_seeds() -> list[bytes]:
    return [
        b"\x40HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        b"\x80HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        b"5;a=b\r\nhello\r\n0\r\nx: y\r\n\r\n",
        b"\xc0HTTP/1.0 404 Not Found\r\nconnection: close\r\n\r\nnothing",
    ]
