"""Tests of the protocol of the fast path on connections without a socket."""

import asyncio

import pytest

from select_service.fastpath import fastpath_protocol
from select_service.fastpath import fastpath_protocol as lean
from select_service.fastpath.fastpath_protocol import REQUESTS_PER_ITERATION
from select_service.http import bounded_protocol as bounds
from select_service.http.body_codec import BODY_BUDGET
from tests.builders.conversation import Conversation
from tests.builders.polling import eventually_on_loop
from tests.fastpath.lean_scenes import GET, LARGE, POST, slow_reader

pytestmark = pytest.mark.usefixtures("lean_connections")


# The answering protocol


async def test_usual_requests_never_make_the_ordinary_protocol():
    conversation = Conversation()
    whole = GET % 0 + POST % (2, 3) + b"abc" + GET % 4
    conversation.send(GET % 8, whole, (POST % (6, 3)) + b"a", b"b", b"c")
    assert [body for _, body in conversation.answers()] == [
        b"/8 ",
        b"/0 ",
        b"/2 abc",
        b"/4 ",
        b"/6 abc",
    ]
    assert conversation.ordinary is None
    assert conversation.scopes == []
    assert conversation.state.connections == {conversation.protocol}


async def test_a_packet_of_one_request_costs_one_call_and_one_write():
    conversation = Conversation()
    conversation.send(GET % 2)
    conversation.handler.n_called = 0
    for _ in range(10):
        conversation.send(GET % 2)
    assert conversation.handler.n_called == 10
    assert conversation.handler.n_answered == 11


async def test_requests_in_one_packet_are_answered_with_one_write():
    conversation = Conversation()
    writes: list[bytes] = []
    conversation.protocol._write = writes.append
    conversation.send(GET % 2 * 20)
    assert len(writes) == 1


async def test_the_fast_path_resumes_after_an_ordinary_answer():
    conversation = Conversation()
    for n in range(10):
        conversation.send(GET % n)
        await conversation.settle()
    assert [body for _, body in conversation.answers()] == [b"/%d " % n for n in range(10)]
    assert conversation.handler.n_answered == 5
    assert len(conversation.scopes) == 5
    assert conversation.state.connections == {conversation.protocol}


async def test_requests_before_the_end_of_an_ordinary_answer_are_ordinary_too():
    """Otherwise an answer would overtake an earlier answer."""
    conversation, wire = slow_reader()
    conversation.send(GET % 1)
    await conversation.settle()
    conversation.send(GET % 2)
    await conversation.settle()
    assert conversation.handler.n_answered == 0
    wire.take()
    conversation.send(GET % 4)
    assert conversation.handler.n_answered == 1
    wire.take()
    assert [body for _, body in conversation.answers()] == [b"/1 ", b"/2 ", b"/4 "]


INSIDE = {
    "a head": [b"GET /1 HTTP/1.1\r\na: ", GET % 2],
    "a body": [POST % (1, len(GET % 2)), GET % 2],
    "a body that is answered already": [
        b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(GET % 2),
        GET % 2,
    ],
    "a chunked body": [
        b"POST /1 HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n" % len(GET % 2),
        GET % 2,
        b"\r\n0\r\n\r\n",
    ],
    "trailers": [
        b"POST /1 HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\na: ",
        GET % 2,
    ],
}


@pytest.mark.parametrize("kind", INSIDE)
async def test_bytes_like_a_request_inside_another_are_no_request(kind):
    conversation = Conversation()
    for part in INSIDE[kind]:
        conversation.send(part)
        await conversation.settle()
    assert conversation.handler.n_answered == 0
    assert len(conversation.answers()) == len(conversation.scopes) == 1
    conversation.send(GET % 4)
    assert conversation.handler.n_answered == 1


async def test_no_request_overtakes_unparsed_requests():
    conversation = Conversation()
    conversation.send(GET % 1 * 400)
    assert conversation.ordinary._unparsed
    for _ in range(400):
        conversation.send(GET % 2)
        await asyncio.sleep(0)
    wanted = [b"/1 "] * 400 + [b"/2 "] * 400
    await eventually_on_loop(lambda: len(conversation.asked) == len(wanted))
    await conversation.settle()
    assert [body for _, body in conversation.answers()] == wanted


async def test_a_body_that_turns_out_to_be_unusual_is_the_ordinary_paths():
    conversation = Conversation()
    conversation.send(POST % (2, 9) + b"123", b"1.5", b"123" + GET % 4)
    await conversation.settle()
    assert conversation.answers() == [(200, b"/2 1231.5123"), (200, b"/4 ")]
    assert conversation.handler.n_answered == 0


# Bounds


@pytest.fixture
def timeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a turn answer as many requests as allowed, however long the answers take."""
    monkeypatch.setattr(fastpath_protocol, "ITERATION_S", 3600.0)


@pytest.mark.usefixtures("timeless")
async def test_a_turn_answers_a_bounded_number_of_requests():
    conversation = Conversation()
    n = 3 * REQUESTS_PER_ITERATION + 5
    conversation.send(GET % 2 * n)
    for turn in (1, 2, 3):
        assert conversation.handler.n_answered == turn * REQUESTS_PER_ITERATION
        assert not conversation.wire.reading
        await asyncio.sleep(0)
    assert conversation.handler.n_answered == n
    assert conversation.wire.reading
    assert len(conversation.answers()) == n


async def test_answers_that_take_long_have_a_turn_each(monkeypatch):
    monkeypatch.setattr(fastpath_protocol, "ITERATION_S", -1.0)
    conversation = Conversation()
    conversation.send(GET % 2 * 3)
    for turn in (1, 2, 3):
        assert conversation.handler.n_answered == turn
        await asyncio.sleep(0)
    assert len(conversation.answers()) == 3


async def test_a_client_that_does_not_read_gets_no_more_answers():
    conversation, wire = slow_reader()
    for _ in range(20):
        conversation.send(GET % 2)
        await conversation.settle()
    assert not wire.reading
    few = conversation.handler.n_answered
    assert few < 10
    assert wire.most < 500
    wire.take()
    await conversation.settle()
    assert few < conversation.handler.n_answered
    while conversation.handler.n_answered < 20:
        wire.take()
        await conversation.settle()
    wire.take()
    await conversation.settle()
    assert wire.reading
    assert len(conversation.answers()) == 20


async def test_bodies_that_come_in_share_the_budget_of_all():
    conversation = Conversation()
    conversation.send(POST % (2, 2 * LARGE) + b"x" * LARGE)
    assert 0 < BODY_BUDGET.used <= 1000 + 100
    conversation.send(b"x" * 500)
    held = BODY_BUDGET.used
    assert held > 1000 + 500
    conversation.send(b"x" * (LARGE - 500))
    assert BODY_BUDGET.used == 0
    assert conversation.handler.n_answered == 1


async def test_beyond_the_budget_the_ordinary_path_has_the_body(monkeypatch):
    monkeypatch.setattr(BODY_BUDGET, "total", 1)
    conversation = Conversation()
    conversation.send(POST % (2, 2 * LARGE) + b"x" * LARGE)
    assert conversation.ordinary is not None
    conversation.send(b"x" * LARGE)
    await conversation.settle()
    assert [len(body) for _, body in conversation.asked] == [2 * LARGE]
    assert conversation.handler.n_answered == 0


@pytest.mark.parametrize("end", ["lost", "shutdown"])
async def test_the_budget_is_given_back(end):
    conversation = Conversation()
    conversation.send(POST % (2, 2 * LARGE) + b"x" * LARGE)
    if end == "shutdown":
        conversation.protocol.shutdown()
        assert BODY_BUDGET.used == 0
    conversation.protocol.connection_lost(None)
    await conversation.settle()


@pytest.mark.parametrize("bound", ["REQUEST_PARTS_MAX", "REQUEST_BYTES_MAX"])
async def test_a_body_beyond_the_bounds_goes_to_the_ordinary_path(bound, monkeypatch):
    monkeypatch.setattr(lean, bound, 5)
    conversation = Conversation()
    conversation.send(POST % (2, 6), *[b"x"] * 5)
    assert conversation.ordinary is not None
    conversation.send(b"x")
    await conversation.settle()
    assert conversation.answers() == [(200, b"/2 xxxxxx")]


async def test_the_last_allowed_connection_may_send_unusual_requests(monkeypatch):
    monkeypatch.setattr(bounds, "CONNECTIONS_MAX", 1)
    conversation = Conversation()
    conversation.send(GET % 1)
    await conversation.settle()
    assert conversation.answers() == [(200, b"/1 ")]
    conversation.state.connections.add(object())  # type: ignore[arg-type]
    too_many = Conversation()
    too_many.state.connections.add(object())  # type: ignore[arg-type]
    too_many.protocol.connection_made(too_many.wire)
    assert [status for status, _ in too_many.answers()] == [503]
    assert too_many.wire.mark_closed
