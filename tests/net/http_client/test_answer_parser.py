"""Tests of answers of every form, cut anywhere, and of refused answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.net.http_client.response_parser import (
    FRAMING_BYTES_MAX,
    FRAMING_SHARE,
    HEADERS_MAX,
    INTERIM_MAX,
    PIECE_BYTES,
    ResponseParser,
    UnreadableResponse,
)
from tests.net.hostile_http import ATTACKS, CHUNKED, OK

INTERIM = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"


def fed(data, piece_bytes=PIECE_BYTES):
    parser = ResponseParser()
    for at in range(0, len(data), piece_bytes):
        parser.feed_piece(memoryview(data[at : at + piece_bytes]))
    return parser


def fault(data):
    with pytest.raises(UnreadableResponse) as caught:
        fed(data)
    return str(caught.value)


WHOLE = [
    (OK + b"content-length: 5\r\n\r\nhello", True),
    (CHUNKED + b"2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nx-more: 1\r\n\r\n", True),
    (INTERIM * INTERIM_MAX + OK + b"Content-Length: 5\r\n\r\nhello", True),
    (OK + b"content-length: 5\r\nconnection: close\r\n\r\nhello", False),
    (b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello", False),
    (OK + b"content-length: 5\r\n\r\nhello and more", False),
    (OK + b"content-length: 5\r\n\r\nhello" + OK + b"content-length: 0\r\n\r\n", False),
]


@pytest.mark.parametrize(("data", "keeps"), WHOLE)
@pytest.mark.parametrize("piece_bytes", [1, 7, PIECE_BYTES])
def test_a_whole_answer_is_the_same_wherever_it_is_cut(data, keeps, piece_bytes):
    parser = fed(data, piece_bytes)
    assert (parser.status, parser.is_complete) == (200, True)
    assert parser.keeps_connection is keeps
    assert parser.take_body() == b"hello"
    assert parser.take_body() == b""


def test_a_body_without_a_length_ends_with_its_connection():
    parser = fed(OK + b"\r\nhello")
    assert not parser.is_complete
    assert parser.end_of_connection()
    assert not fed(OK + b"content-length: 9\r\n\r\nhello").end_of_connection()
    assert not fed(b"HTTP/1.1 200").end_of_connection()


def test_headers_of_interim_answers_are_none_of_the_answer():
    parser = fed(INTERIM + OK + b"A: 1\r\na: 2\r\ncontent-length: 0\r\n\r\n")
    assert parser.headers == {"a": "1, 2", "content-length": "0"}


def test_a_trailer_is_no_header():
    assert fed(CHUNKED + b"0\r\ncontent-type: x\r\n\r\n").headers == {
        "transfer-encoding": "chunked"
    }


def test_more_interim_answers_than_can_be_are_refused():
    told = fault(INTERIM * (INTERIM_MAX + 1))
    assert told == f"more than {INTERIM_MAX} interim responses (1xx) before the response"


@pytest.mark.parametrize("head", [OK, CHUNKED + b"0\r\n", INTERIM[:-2]])
def test_more_headers_than_can_be_are_refused(head):
    assert fault(head + b"a: b\r\n" * (HEADERS_MAX + 2)) == (
        f"response has more than {HEADERS_MAX} headers"
    )


def test_chunks_may_be_small_but_not_all_of_a_large_body():
    def answer(chunk_bytes, body_bytes):
        chunk = b"%x\r\n%b\r\n" % (chunk_bytes, b"x" * chunk_bytes)
        return CHUNKED + chunk * (body_bytes // chunk_bytes) + b"0\r\n\r\n"

    few, many = FRAMING_BYTES_MAX // 6, 10 * FRAMING_BYTES_MAX
    assert fed(answer(1, few)).is_complete
    assert fed(answer(6 * FRAMING_SHARE, many)).is_complete
    told = fault(answer(1, many))
    assert f"the limit is {FRAMING_BYTES_MAX} and a {FRAMING_SHARE}th of the body" in told


STRANGE = [
    b"\x00\xff\x16\x03 is no HTTP\r\n\r\n",
    b"HTTP/1.1 101 Up\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n..",
    CHUNKED + b"zz\r\n",
    OK + b"content-length: 1\r\ncontent-length: 2\r\n\r\n",
    OK + b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
]


@pytest.mark.parametrize("data", STRANGE)
def test_bytes_that_are_not_http_are_refused(data):
    assert fault(data) == "response is not HTTP"


ENDLESS = [name for name in ATTACKS if name not in ("a body", "a slow drip")]


@pytest.mark.parametrize("attack", ENDLESS)
def test_of_every_attack_a_bounded_number_of_bytes_is_parsed(attack):
    parser, size = ResponseParser(), 0
    try:
        for part in ATTACKS[attack]():
            for at in range(0, len(part), PIECE_BYTES):
                piece = part[at : at + PIECE_BYTES]
                size += len(piece)
                parser.feed_piece(memoryview(piece))
            if parser.is_complete:
                return
            around = size - parser.body_bytes
            assert around <= FRAMING_BYTES_MAX + parser.body_bytes // FRAMING_SHARE
    except UnreadableResponse:
        return
    raise AssertionError("it ended by itself")


SCRAPS = [b"HTTP/1.1 ", b"200 OK", b"100", b"\r\n", b"a: b", b"0", b"\xff"]


@given(st.lists(st.sampled_from(SCRAPS)))
def test_any_bytes_are_an_answer_or_refused(scraps):
    try:
        parser = fed(b"".join(scraps))
    except UnreadableResponse:
        return
    assert parser.unread_bytes == len(parser.take_body())
