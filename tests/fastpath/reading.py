"""Requests as read by the compiled reader and as read by the ordinary path, as the same record.

The ordinary path is httptools with `http.request_head`, `http.body_codec` and `schemas`, as
`BoundedProtocol` and the handlers use these parts. A request that the ordinary path refuses, warns
of or answers in another way is None.
"""

from typing import Any, NamedTuple

import httptools
import msgspec
import numpy as np

from select_service.api.endpoints.selection import unused_hashes_warning
from select_service.base.errors import SelectError
from select_service.core.placement.prompt import ISL_TOKENS_MAX, read_booked_prompt, read_prompt
from select_service.fastpath.parsing import request_layout as layout
from select_service.fastpath.parsing.body_kernels import KEYS, NULL_ONLY
from select_service.fastpath.parsing.number_list_kernels import LIST_SPARE
from select_service.fastpath.parsing.request_layout import COMMON, INCOMPLETE, NONE, NOT_COMMON
from select_service.http.body_codec import _check_content_type, decode_body
from select_service.http.lenient_decode import BodySchema
from select_service.http.request_head import Headers, check_head
from select_service.schemas.common import DEFAULT_NAME, resolve_tenant
from select_service.schemas.pairs import SelectPairAndReserveRequest, SelectPairRequest
from select_service.schemas.reservations import OutputBlockRequest, ReservationRequest
from select_service.schemas.selection import SelectAndReserveRequest, SelectRequest
from tests.fastpath.request_kernels import read_request

NUMBERS = 4096
FIELDS = np.zeros(layout.N_FIELDS, np.int64)
BLOCKS, SEQUENCE = np.zeros((2, NUMBERS + LIST_SPARE), np.uint64)
TOKENS = np.zeros(NUMBERS + LIST_SPARE, np.uint32)

FORMS: dict[int, BodySchema[Any]] = {
    layout.SELECT: BodySchema(SelectRequest),
    layout.SELECT_AND_RESERVE: BodySchema(SelectAndReserveRequest),
    layout.RESERVE: BodySchema(ReservationRequest),
    layout.SELECT_PAIR: BodySchema(SelectPairRequest),
    layout.SELECT_PAIR_AND_RESERVE: BodySchema(SelectPairAndReserveRequest),
    layout.OUTPUT_BLOCK: BodySchema(OutputBlockRequest),
}
PLAIN = {
    "/select": layout.SELECT,
    "/select_and_reserve": layout.SELECT_AND_RESERVE,
    "/reservations": layout.RESERVE,
    "/select_pair": layout.SELECT_PAIR,
    "/select_pair_and_reserve": layout.SELECT_PAIR_AND_RESERVE,
}
VERBS = {
    ("POST", "prefill_complete"): layout.PREFILL_COMPLETE,
    ("POST", "output_block"): layout.OUTPUT_BLOCK,
    ("POST", "renew"): layout.RENEW,
    ("POST", "first_token"): layout.FIRST_TOKEN,
    ("DELETE", None): layout.FREE,
}


PAIR_ROUTES = (layout.SELECT_PAIR, layout.SELECT_PAIR_AND_RESERVE)
LOCAL_RULES = {layout.AUTO: "auto", layout.NEVER: "never", layout.ALWAYS: "always"}


class Request(NamedTuple):
    """Request as a reader understands the bytes."""

    size: int
    """Number of bytes of the request."""
    route: int
    path_id: str | None = None
    policy_class: str | None = None
    texts: tuple[str | None, ...] | None = None
    """selection_id, reservation_id, model_name, tenant_id; only for requests with a prompt."""
    worker_id: int | None = None
    dp_rank: int | None = None
    """Rank; None means 0, the default."""
    effective_prefill_tokens: int | None = None
    expected_output_tokens: int | None = None
    isl_tokens: int | None = None
    blocks: tuple[int, ...] | None = None
    sequence: tuple[int, ...] | None = None
    tokens: tuple[int, ...] | None = None
    decay_fraction: float | None = None
    dialect: tuple[bool, bool] | None = None
    """Flags of bookings: selection_id names the reservation; the answer has hashes."""
    local: str | None = None
    """Choice between a pair and a single rank; only for pairs."""


def state_of(data: bytes, at: int = 0, end: int | None = None) -> int:
    """Return the reader's state for data[at:end]; the fields are those of the last call."""
    end = len(data) if end is None else end
    state: int = read_request(data, at, end, FIELDS, BLOCKS, SEQUENCE, TOKENS)
    assert state in (COMMON, INCOMPLETE, NOT_COMMON)
    return state


def read(data: bytes, at: int = 0, end: int | None = None) -> Request | None:
    """Return the request if the reader takes it as usual, else None."""
    return _request(data, at) if state_of(data, at, end) == COMMON else None


def _request(data: bytes, begin: int) -> Request:
    def text(entry: int) -> str | None:
        at, length = FIELDS[entry : entry + 2]
        return None if at == NONE else data[at : at + length].decode("ascii")

    def number(entry: int) -> int | None:
        value = int(FIELDS[entry])
        return None if value == NONE else value % 2**64

    def numbers(entry: int, array: np.ndarray[Any, Any]) -> tuple[int, ...] | None:
        n = FIELDS[entry]
        return None if n == NONE else tuple(array[:n].tolist())

    texts = (
        text(layout.SELECTION_ID),
        text(layout.RESERVATION_ID),
        text(layout.MODEL_NAME) or DEFAULT_NAME,
        text(layout.TENANT_ID) or DEFAULT_NAME,
    )
    return Request(
        int(FIELDS[layout.END]) - begin,
        int(FIELDS[layout.ROUTE]),
        text(layout.PATH_ID),
        text(layout.POLICY_CLASS),
        texts if FIELDS[layout.ROUTE] < layout.PREFILL_COMPLETE else None,
        number(layout.WORKER_ID),
        number(layout.DP_RANK) or None,
        number(layout.EFFECTIVE_PREFILL_TOKENS),
        number(layout.EXPECTED_OUTPUT_TOKENS),
        number(layout.ISL_TOKENS),
        numbers(layout.N_BLOCKS, BLOCKS),
        numbers(layout.N_SEQUENCE, SEQUENCE),
        numbers(layout.N_TOKENS, TOKENS),
        None
        if FIELDS[layout.DECAY_FRACTION] == NONE
        else float(FIELDS.view(float)[layout.DECAY_FRACTION]),
        _dialect(int(FIELDS[layout.ROUTE])),
        LOCAL_RULES[FIELDS[layout.LOCAL]] if FIELDS[layout.ROUTE] in PAIR_ROUTES else None,
    )


def _dialect(route: int) -> tuple[bool, bool] | None:
    chosen = (layout.SELECT_AND_RESERVE, layout.SELECT_PAIR_AND_RESERVE)
    if route not in (*chosen, layout.RESERVE):
        return None
    is_chosen = route in chosen
    returns_hashes = is_chosen and bool(FIELDS[layout.RETURNS_HASHES])
    return bool(FIELDS[layout.IS_SELECTION_NAMED]), returns_hashes


class _Head:
    """Callbacks of httptools, as in uvicorn."""

    def __init__(self) -> None:
        self.url, self.body = b"", b""
        self.headers: Headers = []
        self.heads = 0
        self.complete = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.heads += 1

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True


def is_complete(data: bytes) -> bool:
    """Return whether the ordinary path has all of a request."""
    return _parsed(data) is not None


def _parsed(data: bytes) -> tuple[_Head, httptools.HttpRequestParser] | None:
    """Parse a request, whether or not the service refuses it afterwards."""
    head = _Head()
    parser = httptools.HttpRequestParser(head)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    try:
        parser.feed_data(data)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    return (head, parser) if head.complete else None


def ordinary(data: bytes) -> Request | None:
    """Return the request as the ordinary path reads `data`, which must hold exactly one request."""
    parsed = _parsed(data)
    if parsed is None:
        return None
    head, parser = parsed
    try:
        url = httptools.parse_url(head.url)
        if check_head(head.headers, parser) != len(head.body) or head.heads != 1:
            return None
        if parser.should_upgrade() or not parser.should_keep_alive() or url.query:
            return None
        if parser.get_http_version() != "1.1" or b"expect" in dict(head.headers):
            return None
        return _of_route(data, head, parser.get_method().decode(), url.path.decode())
    except (httptools.HttpParserError, SelectError):
        return None


def _of_route(data: bytes, head: _Head, method: str, path: str) -> Request | None:
    policy_class = dict(head.headers).get(b"x-dynamo-meta-policy-class")
    request = Request(len(data), NONE, None, policy_class and policy_class.decode())
    if path in PLAIN and method == "POST":
        return _with_body(request._replace(route=PLAIN[path]), head)
    root, _, rest = path[1:].partition("/")
    path_id, _, verb = rest.partition("/")
    route = VERBS.get((method, verb or None))
    if root != "reservations" or not path_id or "%" in path_id or route is None:
        return None
    if route == layout.OUTPUT_BLOCK and head.body:
        _check_content_type(dict(head.headers).get(b"content-type", b""))
        body = decode_body(head.body, FORMS[route])
        if body is None or not 0.0 <= (body.decay_fraction or 0.0) <= 1.0:
            return None
        request = request._replace(decay_fraction=body.decay_fraction)
    return request._replace(route=route, path_id=path_id)


def _with_body(request: Request, head: _Head) -> Request | None:
    _check_content_type(dict(reversed(head.headers)).get(b"content-type", b""))
    body = decode_body(head.body, FORMS[request.route])
    if body is None or unused_hashes_warning(body) or not _has_only_what_we_know(body):
        return None
    reserves = request.route == layout.RESERVE
    prompt = (read_booked_prompt if reserves else read_prompt)(body, 1, False)
    assert 0 <= prompt.isl_tokens <= ISL_TOKENS_MAX
    hashed = body.token_ids is None
    blocks = body.block_hashes
    return request._replace(
        texts=_texts(body),
        worker_id=getattr(body, "worker_id", None),
        dp_rank=(body.dp_rank or None) if reserves else None,
        effective_prefill_tokens=getattr(body, "effective_prefill_tokens", None),
        expected_output_tokens=body.expected_output_tokens,
        isl_tokens=prompt.isl_tokens,
        blocks=tuple(each % 2**64 for each in blocks) if hashed and blocks is not None else None,
        sequence=tuple(prompt.sequence_hashes.tolist()) if hashed else None,
        tokens=None if hashed else tuple(body.token_ids),
        dialect=_dialect_of(body),
        local=getattr(body, "local", None),
    )


def _dialect_of(body: Any) -> tuple[bool, bool] | None:
    if not hasattr(body, "booking_id"):
        return None
    is_named = body.reservation_id is None and body.selection_id is not None
    return is_named, getattr(body, "returns_hashes", False)


KNOWN = frozenset(key.decode() for key, entry, _, _ in KEYS if entry != NULL_ONLY)


def _has_only_what_we_know(body: msgspec.Struct) -> bool:
    """Return whether all other fields have default values."""
    given = {
        name: value
        for name, value in msgspec.structs.asdict(body).items()
        if name in KNOWN and value is not msgspec.UNSET
    }
    return body == type(body)(**given)


def _texts(body: Any) -> tuple[str | None, ...]:
    return (
        getattr(body, "selection_id", None),
        getattr(body, "booking_id", None),
        body.model_name,
        resolve_tenant(body.tenant_id, body.routing_group),
    )


def agrees(data: bytes) -> bool:
    """Return whether a request is usual; if so, check that the ordinary path reads the same.

    Where the reader waits for more bytes and knows the number, the ordinary path must wait, too.
    """
    found = read(data)
    if found is not None:
        assert ordinary(data[: found.size]) == found
        return True
    if state_of(data) == INCOMPLETE and FIELDS[layout.END] != NONE:
        rest = bytes(int(FIELDS[layout.END]) - len(data))
        assert is_complete(data + rest)
        assert not is_complete(data + rest[1:])
    return False
