"""Tests that the compiled reader takes usual requests only and agrees with the ordinary path."""

import json
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from select_service.core.placement import prompt
from select_service.fastpath.parsing import request_layout as layout
from select_service.fastpath.parsing.byte_kernels import WINDOW
from select_service.fastpath.parsing.number_list_kernels import LIST_SPARE
from select_service.fastpath.parsing.request_layout import INCOMPLETE, NONE, NOT_COMMON
from select_service.http import body_codec, bounded_protocol, request_head
from select_service.schemas import common
from tests.fastpath import reading
from tests.fastpath.mutations import mutated
from tests.fastpath.reading import agrees, read, state_of
from tests.fastpath.requests import BARE, BOOKED, HASHES, HTTPX, TOKENS, USUAL, request


@pytest.mark.parametrize("data", USUAL)
def test_usual_requests_are_read_as_the_ordinary_path_reads_them(data):
    assert agrees(data)


@pytest.mark.parametrize("data", USUAL)
def test_a_request_cut_anywhere_is_incomplete(data):
    head_end = data.index(b"\r\n\r\n") + 4
    for size in range(len(data)):
        assert state_of(data[:size]) == INCOMPLETE, data[:size]
        assert reading.FIELDS[layout.END] == (len(data) if size >= head_end else NONE), size


POISONS = (b"0" * 80, b'"' * 80, b", 1" * 30, b"\r\n" * 40, b"\xff" * 80, b"]}" * 40, b" " * 80)


@pytest.mark.parametrize("data", USUAL)
@pytest.mark.parametrize("poison", POISONS)
def test_bytes_around_a_request_change_nothing(data, poison):
    whole = read(data)
    begin, end = len(poison), len(poison) + len(data)
    padded = poison + data + poison
    assert read(padded, begin, end) == whole
    assert read(padded, begin) == whole  # other requests are pipelined behind this request
    for size in range(0, len(data), 7):
        assert state_of(padded, begin, begin + size) == state_of(data[:size])


def test_pipelined_requests_are_read_one_after_the_other():
    data, at = b"".join(USUAL), 0
    for each in USUAL:
        assert read(data, at) == read(each)
        at += len(each)
    assert at == len(data)


SPACED = {"isl_tokens": 1, "block_hashes": [1, 2], "sequence_hashes": [3, 4]}


@pytest.mark.parametrize("blank", ["", " ", "\n", "\r\n\t "])
def test_blanks_are_allowed_between_keys_and_values(blank):
    members = f"{blank},{blank}".join(
        f'"{key}"{blank}:{blank}{json.dumps(value)}' for key, value in SPACED.items()
    )
    text = f"{blank}{{{blank}{members}{blank}}}{blank}"
    assert agrees(request("POST /select", HTTPX, text.encode()))


HASHES_ST = st.integers(-(2**63), 2**64 - 1) | st.integers(-20, 20)
TOKENS_ST = st.integers(0, 10**8 - 1) | st.integers(0, 99)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(HASHES_ST, HASHES_ST), min_size=1, max_size=60),
    st.lists(TOKENS_ST, min_size=1, max_size=120),
    st.booleans(),
    st.permutations(["block_hashes", "sequence_hashes", "isl_tokens"]),
)
def test_all_numbers_are_read(pairs, tokens, compact, order):
    blocks, sequence = zip(*pairs, strict=True)
    body = {"block_hashes": blocks, "sequence_hashes": sequence, "isl_tokens": len(tokens)}
    data = request("POST /select", HTTPX, {key: body[key] for key in order}, compact)
    assert agrees(data)
    assert agrees(request("POST /select", HTTPX, {"token_ids": tokens}, compact))


TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=100)


@settings(max_examples=200, deadline=None)
@given(TEXT, TEXT)
def test_all_plain_texts_are_read(model, selection):
    body = {**TOKENS, "model_name": model, "selection_id": selection}
    is_plain = not {'"', "\\"} & {*model, *selection}
    assert agrees(request("POST /select", HTTPX, body)) == is_plain


@settings(max_examples=1500, deadline=None)
@given(st.sampled_from(USUAL), st.randoms(use_true_random=False))
def test_changed_requests_are_never_read_in_another_way(data, random):
    agrees(mutated(data, random))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_bytes_are_never_read_in_another_way(data):
    agrees(data)
    agrees(request("POST /select", HTTPX, data))


ROUNDS = 300_000
KEPT_MAX = 4_000


@pytest.mark.slow
def test_changes_upon_changes_are_never_read_in_another_way():
    """Inputs that put the reader into a new state are changed further."""
    random, kept, seen = Random(9), list(USUAL), set()
    for _ in range(ROUNDS):
        data = mutated(random.choice(kept), random)
        agrees(data)
        said = (state_of(data), *np.sign(reading.FIELDS).tolist())
        if said not in seen and len(kept) < KEPT_MAX:
            seen.add(said)
            kept.append(data)


# Unusual requests


def hashed(**changed: object) -> bytes:
    return request("POST /select", HTTPX, {**HASHES, **changed})


def raw(text: str) -> bytes:
    return request("POST /select", HTTPX, text.encode())


def tokens(text: str) -> bytes:
    return raw(f'{{"token_ids": {text}}}')


def hashes(text: str) -> bytes:
    return raw(f'{{"block_hashes": {text}, "sequence_hashes": [1], "isl_tokens": 1}}')


FRACTIONS = (
    *(
        "1.5",
        "1.000000000000001",
        "2",
        "10",
        "-0.5",
        "-0",
        "5e-1",
        "5E-1",
        "0.5e0",
        "0.",
        ".5",
        "00",
        "01.0",
    ),
    *(
        "0.1234567890123456",
        "true",
        '"0.5"',
        "nan",
        "Infinity",
        "[0.5]",
        '0.5, "decay_fraction": 0.5',
    ),
)


def faded(text: str) -> bytes:
    """Return an output block with such a fraction."""
    body = b'{"decay_fraction": %b}' % text.encode()
    return request("POST /reservations/a/output_block", HTTPX, body)


BODIES = [
    raw(""),
    raw(" "),
    raw("{}"),
    raw("[]"),
    raw('{"token_ids": [1]'),
    raw('{"token_ids": [1'),
    raw('{"token_ids": [1]}}'),
    raw('{"token_ids": [1]} x'),
    raw('{"token_ids": [1],}'),
    raw('{,"token_ids": [1]}'),
    raw('{"token_ids": [1] "model_name": "m"}'),
    raw('{"token_ids" [1]}'),
    raw("{token_ids: [1]}"),
    raw("{'token_ids': [1]}"),
    raw('\ufeff{"token_ids": [1]}'),
    raw('{"token_ids": [1], "token_ids": [1]}'),
    raw('{"token_ids": [1], "model_name": "a", "model_name": "a"}'),
    raw('{"token_ids": [1], "model_name": "a\\u0062"}'),
    raw('{"token_ids": [1], "model_name": "ä"}'),
    raw('{"token_ids": [1], "model_name": "a\tb"}'),
    raw('{"token_ids": [1], "model_name": ""}'),
    raw('{"token_ids": [1], "model_name": null}'),
    raw('{"token_ids": [1], "tenant_id": null}'),
    raw('{"token_ids": [1], "routing_constraints": null}'),
    raw('{"token_ids": [1], "lora_name": nul}'),
    raw('{"token_ids": [1], "lora_name": nulls}'),
    raw('{"token_ids": [1], "lora_name": NULL}'),
    raw('{"token_ids": [1], "lora_name": null, "lora_name": null}'),
    raw('{"token_ids": null, "token_ids": [1]}'),
    raw('{"token_ids": [1], "token_ids": null}'),
    raw('{"token_ids": null}'),
    raw('{"token_ids": [1], "reservation_id": null}'),
    raw('{"token_ids": [1], "model_name": 1}'),
    raw('{"token_ids": [1], "model_name": "%s"}' % ("m" * 513)),
    raw('{"token_ids": [1], "token_id": [1]}'),
    raw('{"token_ids": [1], "token_idsx": [1]}'),
    raw('{"token_ids": [1], "t\\u006fken_ids": [1]}'),
    raw('{"token_ids": [1], "tenant_id": "a", "routing_group": "b"}'),
    raw('{"token_ids": [1], "priority_jump": 1}'),
    raw('{"token_ids": [1], "timeout_ms": 3600001}'),
    raw('{"token_ids": [1], "timeout_ms": 1.5}'),
    raw('{"token_ids": [1], "deadline_ms": -1}'),
    raw('{"token_ids": [1], "deadline_ms": "1"}'),
    raw('{"token_ids": [1], "fairness_id": 1}'),
    raw('{"token_ids": [1], "fairness_id": "%s"}' % ("f" * 513)),
    raw('{"token_ids": [1], "is_eagle": true}'),
    raw('{"token_ids": [1], "lora_name": "l"}'),
    raw('{"token_ids": [1], "cache_salt": "s"}'),
    raw('{"token_ids": [1], "pinned_worker": {"worker_id": 1, "dp_rank": 0}}'),
    raw('{"token_ids": [1], "router_config_override": {"router_temperature": 1}}'),
    raw('{"token_ids": [1], "reservation_id": "r"}'),
    raw('{"token_ids": [1], "worker_id": 1}'),
    raw('{"token_ids": [1], "isl_tokens": 1}'),
    raw('{"token_ids": [1], "block_hashes": [1]}'),
    raw('{"token_ids": [1], "sequence_hashes": [1]}'),
    tokens("[]"),
    tokens("[ 1]"),
    tokens("[1 ]"),
    tokens("[1 , 2]"),
    tokens("[1,, 2]"),
    tokens("[1,  2]"),
    tokens("[1,2, 3]"),
    tokens("[, 1]"),
    tokens("[1,]"),
    tokens("[1, ]"),
    tokens("[1\n,2]"),
    tokens("[1 2]"),
    tokens("[01]"),
    tokens("[00]"),
    tokens("[-1]"),
    tokens("[-0]"),
    tokens("[+1]"),
    tokens("[1.0]"),
    tokens("[1e2]"),
    tokens("[0x1]"),
    tokens("[4294967296]"),
    tokens("[123456789]"),
    tokens("[1, true]"),
    tokens("[1, null]"),
    tokens('[1, "2"]'),
    tokens("[1, [2]]"),
    tokens("[[1]]"),
    tokens("1"),
    tokens("{}"),
    hashes("[]"),
    hashes("[1, 2]"),
    hashes("[18446744073709551616]"),
    hashes("[20000000000000000000]"),
    hashes("[28446744073709551615]"),
    hashes("[100000000000000000000]"),
    hashes("[99999999999999999999999999]"),
    hashes("[-9223372036854775809]"),
    hashes("[-18446744073709551615]"),
    hashes("[-0]"),
    hashes("[-]"),
    hashes("[--1]"),
    hashes("[- 1]"),
    hashes("[1-]"),
    hashes("[1-2]"),
    hashes("[007]"),
    hashes("[-01]"),
    hashes("[1.0]"),
    hashes("[1E2]"),
    hashed(isl_tokens=0),
    hashed(isl_tokens=2**40 + 1),
    hashed(isl_tokens=2**64),
    hashed(isl_tokens=-1),
    hashed(isl_tokens=1.0),
    hashed(isl_tokens="1"),
    hashed(isl_tokens=None),
    hashed(block_hashes=[1, 2]),
    hashed(expected_output_tokens=2**32),
    request("POST /select", HTTPX, {"block_hashes": [1], "isl_tokens": 1}),
    request("POST /select", HTTPX, {"sequence_hashes": [1], "isl_tokens": 1}),
    request("POST /select", HTTPX, {"block_hashes": [1], "sequence_hashes": [1]}),
    request("POST /reservations", HTTPX, {**BOOKED, "worker_id": 2**64 - 1}),
    request("POST /reservations", HTTPX, {**BOOKED, "worker_id": 2**64}),
    request("POST /reservations", HTTPX, {**BOOKED, "worker_id": -1}),
    request("POST /reservations", HTTPX, {**BOOKED, "track_prefill_tokens": True}),
    request("POST /reservations", HTTPX, {**BOOKED, "return_hashes": False}),
    request("POST /select", HTTPX, {**TOKENS, "return_hashes": True}),
    request("POST /select", HTTPX, {**TOKENS, "advisory": True}),
    *(
        request(
            "POST /select_and_reserve", HTTPX, b'{"token_ids": [1], "return_hashes": %s}' % text
        )
        for text in (b"1", b'"true"', b"tru", b"truee", b"True", b"fals", b"false ,", b"[]", b"nul")
    ),
    request("POST /reservations", HTTPX, {**BOOKED, "dp_rank": 2**32}),
    request("POST /reservations", HTTPX, {**BOOKED, "effective_prefill_tokens": 2**63}),
    request("POST /reservations", HTTPX, {**TOKENS, "reservation_id": "r"}),
    request("POST /reservations", HTTPX, {**TOKENS, "worker_id": 1}),
    *(faded(text) for text in FRACTIONS),
    request("POST /reservations/a/output_block", HTTPX, {"token_ids": None}),
    request("POST /reservations/a/renew", HTTPX, {"decay_fraction": 0.5}),
    request("POST /reservations/a/output_block", HTTPX, b"[]"),
    request("POST /reservations/a/output_block", HTTPX, b"{"),
    request("POST /reservations/a/output_block", HTTPX, b"  "),
]


@pytest.mark.parametrize("data", BODIES)
def test_unusual_bodies_are_left_to_the_ordinary_path(data):
    assert state_of(data) == NOT_COMMON


def lines(*given: str, body: str = '{"token_ids": [1]}') -> bytes:
    return "\r\n".join(given).encode("latin-1") + b"\r\n\r\n" + body.encode()


POST, HOST = "POST /select HTTP/1.1", "Host: selector:8092"
TYPE, LENGTH = "Content-Type: application/json", "Content-Length: 18"
PADDING = "User-Agent: a client whose name is long enough to fill the window of the reader"
HEADS = [
    lines("GET /select HTTP/1.1", HOST, TYPE, LENGTH),
    lines("post /select HTTP/1.1", HOST, TYPE, LENGTH),
    lines("POST /select HTTP/1.0", HOST, TYPE, LENGTH),
    lines("POST /select HTTP/2.0", HOST, TYPE, LENGTH),
    lines("POST /select HTTP/1.1 ", HOST, TYPE, LENGTH),
    lines("POST  /select HTTP/1.1", HOST, TYPE, LENGTH),
    lines("POST /select  HTTP/1.1", HOST, TYPE, LENGTH),
    lines("POST\t/select HTTP/1.1", HOST, TYPE, LENGTH),
    lines("POST /select", HOST, TYPE, LENGTH),
    lines("POST /select/ HTTP/1.1", HOST, TYPE, LENGTH),
    lines("POST //select HTTP/1.1", HOST, TYPE, LENGTH),
    lines("POST /./select HTTP/1.1", HOST, TYPE, LENGTH),
    lines("POST /selec%74 HTTP/1.1", HOST, TYPE, LENGTH),
    lines("POST /select?a=b HTTP/1.1", HOST, TYPE, LENGTH),
    lines("POST /select#a HTTP/1.1", HOST, TYPE, LENGTH),
    lines("POST http://selector/select HTTP/1.1", HOST, TYPE, LENGTH),
    lines("POST * HTTP/1.1", HOST, TYPE, LENGTH),
    lines("\r\nPOST /select HTTP/1.1", HOST, TYPE, LENGTH),
    lines("POST /reservations/ HTTP/1.1", HOST, TYPE, LENGTH),
    lines("DELETE /select HTTP/1.1", HOST, TYPE, LENGTH),
    lines("DELETE /reservations HTTP/1.1", HOST, PADDING, body=""),
    lines("DELETE /reservations/ HTTP/1.1", HOST, PADDING, body=""),
    lines("DELETE /reservations/a%2Fb HTTP/1.1", HOST, PADDING, body=""),
    lines("DELETE /reservations/a/b HTTP/1.1", HOST, PADDING, body=""),
    lines("DELETE /reservations/a?b HTTP/1.1", HOST, PADDING, body=""),
    lines("DELETE /reservations/a/renew HTTP/1.1", HOST, PADDING, body=""),
    lines(f"DELETE /reservations/{'a' * 513} HTTP/1.1", HOST, body=""),
    lines("GET /reservations/a HTTP/1.1", HOST, PADDING, body=""),
    lines("POST /reservations/a HTTP/1.1", HOST, PADDING, body=""),
    lines("POST /reservations/a/ HTTP/1.1", HOST, PADDING, body=""),
    lines("POST /reservations/a/renew/ HTTP/1.1", HOST, PADDING, body=""),
    lines("POST /reservations//renew HTTP/1.1", HOST, PADDING, body=""),
    lines("POST /reservations/a/rene HTTP/1.1", HOST, PADDING, body=""),
    lines("DELETE /reservations/a HTTP/1.1", HOST, "Content-Length: 2", PADDING, body="{}"),
    lines(POST, TYPE, LENGTH),
    lines(POST, HOST, HOST, TYPE, LENGTH),
    lines(POST, HOST, "host: other", TYPE, LENGTH),
    lines(POST, "Host:", TYPE, LENGTH),
    lines(POST, "Host: ", TYPE, LENGTH),
    lines(POST, "Host: a b", TYPE, LENGTH),
    lines(POST, "Host: a,b", TYPE, LENGTH),
    lines(POST, "Host: a:b", TYPE, LENGTH),
    lines(POST, "Host: a:1:2", TYPE, LENGTH),
    lines(POST, "Host: a@b", TYPE, LENGTH),
    lines(POST, "Host: a/b", TYPE, LENGTH),
    lines(POST, "Host: [::1", TYPE, LENGTH),
    lines(POST, "Host: []", TYPE, LENGTH),
    lines(POST, "Host: [::1]a", TYPE, LENGTH),
    lines(POST, "Host: selector ", TYPE, LENGTH),
    lines(POST, f"Host: {'a' * 256}", TYPE, LENGTH),
    lines(POST, HOST, TYPE),
    lines(POST, HOST, TYPE, LENGTH, LENGTH),
    lines(POST, HOST, TYPE, LENGTH, "content-length: 19"),
    lines(POST, HOST, TYPE, "Content-Length: 18, 18"),
    lines(POST, HOST, TYPE, "Content-Length: +18"),
    lines(POST, HOST, TYPE, "Content-Length: -18"),
    lines(POST, HOST, TYPE, "Content-Length: 0x12"),
    lines(POST, HOST, TYPE, "Content-Length: 018"),
    lines(POST, HOST, TYPE, "Content-Length: 18 "),
    lines(POST, HOST, TYPE, "Content-Length:  18"),
    lines(POST, HOST, TYPE, "Content-Length:\t18"),
    lines(POST, HOST, TYPE, "Content-Length: 1 8"),
    lines(POST, HOST, TYPE, "Content-Length:"),
    lines(POST, HOST, TYPE, "Content-Length: 0"),
    lines(POST, HOST, TYPE, "Content-Length : 18"),
    lines(POST, HOST, TYPE, " Content-Length: 18"),
    lines(POST, HOST, TYPE, f"Content-Length: {layout.BODY_BYTES_MAX + 1}"),
    lines(POST, HOST, TYPE, "Content-Length: 18446744073709551634"),
    lines(POST, HOST, TYPE, LENGTH, "Transfer-Encoding: chunked"),
    lines(POST, HOST, TYPE, LENGTH, "transfer-encoding: identity"),
    lines(POST, HOST, TYPE, "TRANSFER-ENCODING: Chunked", body="12\r\n{}\r\n0\r\n\r\n"),
    lines(POST, HOST, TYPE, LENGTH, "Transfer-Encoding : chunked"),
    lines(POST, HOST, TYPE, LENGTH, "Transfer-Encoding:\x0bchunked"),
    lines(POST, HOST, TYPE, LENGTH, "Expect: 100-continue"),
    lines(POST, HOST, TYPE, LENGTH, "Expect: "),
    lines(POST, HOST, TYPE, LENGTH, "Connection: close"),
    lines(POST, HOST, TYPE, LENGTH, "Connection: keep-alive, close"),
    lines(POST, HOST, TYPE, LENGTH, "Connection: keep-alivE", "Connection: close"),
    lines(POST, HOST, TYPE, LENGTH, "Connection: Upgrade", "Upgrade: websocket"),
    lines(POST, HOST, TYPE, LENGTH, "Proxy-Connection: close"),
    lines(POST, HOST, TYPE, LENGTH, "Upgrade: h2c"),
    lines(POST, HOST, TYPE, LENGTH, "HTTP2-Settings: AAMAAABk"),
    lines(POST, HOST, TYPE, LENGTH, "Origin: http://evil.example"),
    lines(POST, HOST, LENGTH),
    lines(POST, HOST, LENGTH, "Content-Type: text/plain"),
    lines(POST, HOST, LENGTH, "Content-Type: application/jsonx"),
    lines(POST, HOST, LENGTH, "Content-Type: application/cloudevents+json"),
    lines(POST, HOST, LENGTH, "Content-Type: "),
    lines(POST, HOST, LENGTH, TYPE, TYPE),
    lines(POST, HOST, LENGTH, TYPE, "Content-Type: text/plain"),
    lines(POST, HOST, LENGTH, TYPE, "X-A: b\r\n c"),
    lines(POST, HOST, LENGTH, TYPE, "X-A: b\r\n\tc"),
    lines(POST, HOST, LENGTH, TYPE, "X-A: b\nX-B: c"),
    lines(POST, HOST, LENGTH, TYPE, "X-A: b\rX-B: c"),
    lines(POST, HOST, LENGTH, TYPE, "X-A: b\r\r\nX-B: c"),
    lines(POST, HOST, LENGTH, TYPE, "X-A: b\0"),
    lines(POST, HOST, LENGTH, TYPE, "X-A: \x7f"),
    lines(POST, HOST, LENGTH, TYPE, "X-A: \xe4"),
    lines(POST, HOST, LENGTH, TYPE, "X-\xe4: a"),
    lines(POST, HOST, LENGTH, TYPE, "X A: b"),
    lines(POST, HOST, LENGTH, TYPE, "X-A"),
    lines(POST, HOST, LENGTH, TYPE, ": b"),
    lines(POST, HOST, LENGTH, TYPE, "x-dynamo-meta-policy-class:"),
    lines(POST, HOST, LENGTH, TYPE, "x-dynamo-meta-policy-class: a b"),
    lines(POST, HOST, LENGTH, TYPE, *["x-dynamo-meta-policy-class: a"] * 2),
    lines(POST, HOST, LENGTH, TYPE, *(f"X-{n}: a" for n in range(layout.HEADERS_MAX))),
    lines(POST, HOST, LENGTH, TYPE, f"X-A: {'a' * layout.HEAD_BYTES_MAX}"),
    lines(POST, HOST, LENGTH, TYPE).replace(b"\r\n\r\n", b"\n\n"),
    lines(POST, HOST, LENGTH, TYPE).replace(b"\r\n\r\n", b"\r\n\n"),
    lines(POST, HOST, LENGTH, TYPE).replace(b"\r\n", b"\n"),
]


@pytest.mark.parametrize("data", HEADS)
def test_unusual_heads_are_left_to_the_ordinary_path(data):
    assert state_of(data) == NOT_COMMON


@pytest.mark.parametrize(
    "headers",
    [
        (HOST, TYPE, LENGTH),
        ("host:a", TYPE, "CONTENT-LENGTH:18"),
        ("Host: [::1]:8092", TYPE, LENGTH),
        ("Host: 10.0.0.1", TYPE, LENGTH),
        (HOST, LENGTH, "content-type: application/json; charset=utf-8"),
        (HOST, LENGTH, "content-type:application/json;charset=UTF-8"),
        (HOST, LENGTH, TYPE, "Connection: Keep-Alive", "Keep-Alive: timeout=5"),
        (HOST, LENGTH, TYPE, "X-Empty:", "traceparent: 00-0af7651916cd43dd8448eb211c80319c-1-01"),
        (HOST, LENGTH, TYPE, 'Cookie: a=b; c="d"', "Accept: application/json, */*;q=0.5"),
        (HOST, LENGTH, TYPE, *(f"X-{n}: a" for n in range(layout.HEADERS_MAX - 3))),
        (HOST, LENGTH, TYPE, f"X-A: {'a' * (layout.HEAD_BYTES_MAX - 200)}"),
    ],
)
def test_usual_heads_are_read(headers):
    assert agrees(lines(POST, *headers))


@pytest.mark.parametrize("size", [1, 7, 8, 63, 64, 65, 200])
def test_an_unusual_beginning_is_rejected_without_waiting_for_more(size):
    for other in (b"GET /metrics HTTP/1.1\r\nHost: a\r\n", b"\x16\x03\x01", b"PRI * HTTP/2.0\r\n"):
        data = (other + b"x" * 200)[:size]
        assert state_of(data) == (NOT_COMMON if size >= 8 else INCOMPLETE)


def test_a_complete_request_that_is_shorter_than_a_window_is_not_waited_for():
    data = request("DELETE /reservations/a", BARE)
    assert len(data) < WINDOW
    assert state_of(data) == NOT_COMMON
    assert state_of(data + b"D") == NOT_COMMON


def test_more_numbers_than_there_is_room_for_are_unusual():
    for n, state in ((reading.NUMBERS, 1), (reading.NUMBERS + LIST_SPARE + 1, NOT_COMMON)):
        assert state_of(request("POST /select", HTTPX, {"token_ids": [1] * n}, True)) == state
        body = {"block_hashes": [2**64 - 1] * n, "sequence_hashes": [1] * n, "isl_tokens": n}
        assert state_of(request("POST /select", HTTPX, body, True)) == state


def test_bounds_are_those_of_the_ordinary_path_or_narrower():
    assert min(common.NAME_CHARS_MAX, common.ID_CHARS_MAX) >= layout.TEXT_BYTES_MAX
    assert prompt.ISL_TOKENS_MAX >= layout.LENGTH_MAX
    assert min(prompt.LONG_PROMPT_LENGTH, prompt.LOOKED_UP_BLOCKS_MAX) >= layout.NUMBERS_MAX
    assert body_codec.BODY_BYTES_MAX >= layout.BODY_BYTES_MAX
    assert common.TIMEOUT_MS_MAX >= layout.TIMEOUT_MS_MAX
    assert request_head.HEADERS_MAX >= layout.HEADERS_MAX
    assert bounded_protocol.HEAD_BYTES_MAX >= layout.HEAD_BYTES_MAX
