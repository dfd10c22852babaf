"""The protocol that meets the bytes, on connections without a socket."""

import asyncio
import functools
import gc
import weakref
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from select_service.fast import protocol
from select_service.fast import protocol as lean
from select_service.fast.protocol import ANSWERS_PER_TURN, LOOKED_AT_ONCE, Watch
from select_service.http import codec
from select_service.http import protocol as bounds
from select_service.http.codec import BODY_BUDGET, BODY_BYTES_FREE
from select_service.http.protocol import CALLBACK
from select_service.http.server import KEEP_ALIVE_S
from tests.fast.slow_wire import SlowWire
from tests.http.conversation import Conversation
from tests.patience import eventually_on_loop

GET = b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST /%d HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
LARGE = BODY_BYTES_FREE + 1000


@pytest.fixture(autouse=True)
def _lean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Conversation, "is_lean", True)
    yield
    assert BODY_BUDGET.held == 0


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        asyncio.run(test(*arguments, **fixtures))

    return run


def looks(seconds: float) -> int:
    """How often the watch looks before it has seen so long a time."""
    return int(seconds / bounds.WATCH_EVERY_S) + 1


def slow_reader() -> tuple[Conversation, SlowWire]:
    """Whose client reads when it is told to."""
    wire = SlowWire()
    conversation = Conversation(wire)
    wire.protocol, wire.is_reading = conversation.protocol, False
    return conversation, wire


# Who answers


@on_loop
async def test_usual_requests_never_make_the_ordinary_protocol() -> None:
    conversation = Conversation()
    whole = GET % 0 + POST % (2, 3) + b"abc" + GET % 4
    conversation.say(GET % 8, whole, (POST % (6, 3)) + b"a", b"b", b"c")
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


@on_loop
async def test_a_packet_of_one_request_costs_one_call_and_one_write() -> None:
    conversation = Conversation()
    conversation.say(GET % 2)
    conversation.answerer.n_called = 0
    for _ in range(10):
        conversation.say(GET % 2)
    assert conversation.answerer.n_called == 10
    assert conversation.answerer.n_answered == 11


@on_loop
async def test_requests_in_one_packet_are_answered_with_one_write() -> None:
    conversation = Conversation()
    writes: list[bytes] = []
    conversation.protocol._write = writes.append
    conversation.say(GET % 2 * 20)
    assert len(writes) == 1


@on_loop
async def test_after_an_ordinary_answer_the_next_byte_is_ours_again() -> None:
    conversation = Conversation()
    for n in range(10):
        conversation.say(GET % n)
        await conversation.settle()
    assert [body for _, body in conversation.answers()] == [b"/%d " % n for n in range(10)]
    assert conversation.answerer.n_answered == 5
    assert len(conversation.scopes) == 5
    assert conversation.state.connections == {conversation.protocol}


@on_loop
async def test_what_comes_before_an_ordinary_answer_is_sent_is_ordinary_too() -> None:
    """So that no answer overtakes another."""
    conversation, wire = slow_reader()
    conversation.say(GET % 1)
    await conversation.settle()
    conversation.say(GET % 2)
    await conversation.settle()
    assert conversation.answerer.n_answered == 0
    wire.take()
    conversation.say(GET % 4)
    assert conversation.answerer.n_answered == 1
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
@on_loop
async def test_what_looks_like_a_request_inside_another_is_none(kind: str) -> None:
    conversation = Conversation()
    for part in INSIDE[kind]:
        conversation.say(part)
        await conversation.settle()
    assert conversation.answerer.n_answered == 0
    assert len(conversation.answers()) == len(conversation.scopes) == 1
    conversation.say(GET % 4)
    assert conversation.answerer.n_answered == 1


@on_loop
async def test_no_request_overtakes_those_that_wait_to_be_parsed() -> None:
    conversation = Conversation()
    conversation.say(GET % 1 * 400)
    assert conversation.ordinary._held
    for _ in range(400):
        conversation.say(GET % 2)
        await asyncio.sleep(0)
    wanted = [b"/1 "] * 400 + [b"/2 "] * 400
    await eventually_on_loop(lambda: len(conversation.asked) == len(wanted))
    await conversation.settle()
    assert [body for _, body in conversation.answers()] == wanted


@on_loop
async def test_a_body_that_turns_out_to_be_unusual_is_the_ordinary_paths() -> None:
    conversation = Conversation()
    conversation.say(POST % (2, 9) + b"123", b"1.5", b"123" + GET % 4)
    await conversation.settle()
    assert conversation.answers() == [(200, b"/2 1231.5123"), (200, b"/4 ")]
    assert conversation.answerer.n_answered == 0


# Bounds


@pytest.fixture
def timeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long answers take, a turn has as many as it may."""
    monkeypatch.setattr(protocol, "TURN_S", 3600.0)


@pytest.mark.usefixtures("timeless")
@on_loop
async def test_a_turn_answers_a_bounded_number_of_requests() -> None:
    conversation = Conversation()
    n = 3 * ANSWERS_PER_TURN + 5
    conversation.say(GET % 2 * n)
    for turn in (1, 2, 3):
        assert conversation.answerer.n_answered == turn * ANSWERS_PER_TURN
        assert not conversation.wire.reading
        await asyncio.sleep(0)
    assert conversation.answerer.n_answered == n
    assert conversation.wire.reading
    assert len(conversation.answers()) == n


@on_loop
async def test_answers_that_take_long_have_a_turn_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "TURN_S", -1.0)
    conversation = Conversation()
    conversation.say(GET % 2 * 3)
    for turn in (1, 2, 3):
        assert conversation.answerer.n_answered == turn
        await asyncio.sleep(0)
    assert len(conversation.answers()) == 3


@on_loop
async def test_nothing_is_answered_to_who_does_not_read() -> None:
    conversation, wire = slow_reader()
    for _ in range(20):
        conversation.say(GET % 2)
        await conversation.settle()
    assert not wire.reading
    few = conversation.answerer.n_answered
    assert few < 10
    assert wire.most < 500
    wire.take()
    await conversation.settle()
    assert few < conversation.answerer.n_answered
    while conversation.answerer.n_answered < 20:
        wire.take()
        await conversation.settle()
    wire.take()
    await conversation.settle()
    assert wire.reading
    assert len(conversation.answers()) == 20


@on_loop
async def test_bodies_that_come_in_share_the_budget_of_all() -> None:
    conversation = Conversation()
    conversation.say(POST % (2, 2 * LARGE) + b"x" * LARGE)
    assert 0 < BODY_BUDGET.held <= 1000 + 100
    conversation.say(b"x" * 500)
    held = BODY_BUDGET.held
    assert held > 1000 + 500
    conversation.say(b"x" * (LARGE - 500))
    assert BODY_BUDGET.held == 0
    assert conversation.answerer.n_answered == 1


@on_loop
async def test_beyond_the_budget_the_ordinary_path_has_the_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codec, "BODY_BYTES_IN_FLIGHT_MAX", 1)
    conversation = Conversation()
    conversation.say(POST % (2, 2 * LARGE) + b"x" * LARGE)
    assert conversation.ordinary is not None
    conversation.say(b"x" * LARGE)
    await conversation.settle()
    assert [len(body) for _, body in conversation.asked] == [2 * LARGE]
    assert conversation.answerer.n_answered == 0


@pytest.mark.parametrize("end", ["lost", "shutdown"])
@on_loop
async def test_the_budget_is_given_back(end: str) -> None:
    conversation = Conversation()
    conversation.say(POST % (2, 2 * LARGE) + b"x" * LARGE)
    if end == "shutdown":
        conversation.protocol.shutdown()
        assert BODY_BUDGET.held == 0
    conversation.protocol.connection_lost(None)
    await conversation.settle()


@pytest.mark.parametrize("bound", ["PARTS_MAX", "REQUEST_BYTES_MAX"])
@on_loop
async def test_what_is_not_collected_is_the_ordinary_paths(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lean, bound, 5)
    conversation = Conversation()
    conversation.say(POST % (2, 6), *[b"x"] * 5)
    assert conversation.ordinary is not None
    conversation.say(b"x")
    await conversation.settle()
    assert conversation.answers() == [(200, b"/2 xxxxxx")]


@on_loop
async def test_the_last_connection_that_is_allowed_may_ask_what_is_unusual(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "CONNECTIONS_MAX", 1)
    conversation = Conversation()
    conversation.say(GET % 1)
    await conversation.settle()
    assert conversation.answers() == [(200, b"/1 ")]
    conversation.state.connections.add(object())  # type: ignore[arg-type]
    too_many = Conversation()
    too_many.state.connections.add(object())  # type: ignore[arg-type]
    too_many.protocol.connection_made(too_many.wire)
    assert [status for status, _ in too_many.answers()] == [503]
    assert too_many.wire.closed


# Time


@pytest.mark.parametrize("said", [b"", POST % (2, 5) + b"123"], ids=["nothing", "half a body"])
@on_loop
async def test_a_request_that_does_not_come_to_its_end_is_timed_out(said: bytes) -> None:
    conversation = Conversation()
    conversation.say(*filter(None, [said]))
    for _ in range(looks(bounds.REQUEST_READ_S_MAX) - 1):
        conversation.protocol.look()
    assert conversation.wire.written == b""
    conversation.protocol.look()
    assert [status for status, _ in conversation.answers()] == [408]
    assert conversation.wire.closed
    await conversation.settle()


@pytest.mark.parametrize("path", [2, 1], ids=["usual", "ordinary"])
@on_loop
async def test_an_idle_connection_ends(path: int) -> None:
    conversation = Conversation()
    conversation.say(GET % 2)
    for _ in range(3):
        conversation.say(GET % path)
        await conversation.settle()
        for _ in range(looks(KEEP_ALIVE_S) - 1):
            conversation.protocol.look()
        assert not conversation.wire.closed
    conversation.protocol.look()
    assert conversation.wire.closed
    assert conversation.refusals == []


@on_loop
async def test_empty_lines_do_not_keep_an_idle_connection() -> None:
    conversation = Conversation()
    conversation.say(GET % 2)
    for _ in range(looks(KEEP_ALIVE_S)):
        conversation.say(b"\r\n")
        await conversation.settle()
        assert not conversation.wire.closed
        conversation.protocol.look()
    assert conversation.wire.closed


@on_loop
async def test_a_request_without_an_answer_is_not_idle() -> None:
    conversation = Conversation()
    conversation.may_answer.clear()
    conversation.say(GET % 2)
    await conversation.settle()
    for _ in range(2 * looks(KEEP_ALIVE_S)):
        conversation.protocol.look()
    assert not conversation.wire.closed
    conversation.may_answer.set()
    await conversation.settle()
    assert conversation.answers() == [(200, b"/2 ")]


@on_loop
async def test_who_takes_nothing_of_an_answer_is_cut_off() -> None:
    conversation, wire = slow_reader()
    for n in range(2):
        conversation.say(GET % (2 * 10**n))
        for _ in range(looks(bounds.UNREAD_S_MAX)):
            conversation.protocol.look()
            assert not wire.closed
        if n == 0:
            wire.take()
    conversation.protocol.look()
    assert wire.closed


@on_loop
async def test_one_watch_looks_at_all_and_ends_with_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "WATCH_EVERY_S", 0.001)
    seen: list[int] = []

    class Looked:
        def look(self) -> None:
            seen.append(1)

    connections: Any = {Looked() for _ in range(2 * LOOKED_AT_ONCE + 1)}
    watch = Watch()
    watch.on(connections)
    watch.on(connections)
    await eventually_on_loop(lambda: len(seen) >= len(connections))
    connections.clear()
    await eventually_on_loop(lambda: not watch._is_on)
    connections.add(Looked())
    watch.on(connections)
    seen.clear()
    await eventually_on_loop(lambda: seen)
    connections.clear()


@on_loop
async def test_a_turn_of_the_watch_looks_at_a_bounded_number() -> None:
    conversations = [Conversation() for _ in range(3)]
    watch = Watch()
    watch._connections = {each.protocol for each in conversations}
    watch._left = [conversations[0].protocol] * (LOOKED_AT_ONCE + 1)
    watch._look()
    assert len(watch._left) == 1


# The end


@on_loop
async def test_a_server_that_ends_closes_who_is_idle() -> None:
    for said in (b"", GET % 2, GET % 2 + b"GET /"):
        conversation = Conversation()
        conversation.say(*filter(None, [said]))
        conversation.protocol.shutdown()
        assert conversation.wire.closed, said


@on_loop
async def test_a_server_that_ends_answers_what_has_begun_to_come_in() -> None:
    conversation = Conversation()
    conversation.say(POST % (2, 3) + b"a")
    await conversation.settle()
    conversation.protocol.shutdown()
    assert not conversation.wire.closed
    conversation.say(b"bc")
    await conversation.settle()
    assert conversation.answers() == [(200, b"/2 abc")]
    assert b"connection: close" in conversation.wire.written
    assert conversation.wire.closed


@pytest.mark.parametrize("said", [GET % 2, GET % 3, POST % (2, 3) + b"a"])
@on_loop
async def test_a_client_that_goes_is_forgotten(said: bytes) -> None:
    conversation = Conversation()
    conversation.may_answer.clear()
    conversation.say(said)
    await conversation.settle()
    conversation.protocol.connection_lost(None)
    assert conversation.state.connections == set()
    await conversation.settle()
    assert conversation.gone == [f"/{said.split(b'/')[1][:1].decode()}"]
    assert conversation.wire.written == b""
    conversation.protocol.look()


FAILING = {
    "first": [GET % 2],
    "not the first": [GET % 4, GET % 2],
    "behind another": [GET % 4 + GET % 2],
    "in a later turn": [GET % 4 * (ANSWERS_PER_TURN + 1) + GET % 2],
    "after a rest": [POST % (2, 3) + b"a", b"bc"],
    "after an ordinary one": [GET % 1, GET % 2],
}


@pytest.mark.parametrize("kind", FAILING)
@on_loop
async def test_a_failure_of_the_answerer_ends_the_connection(kind: str) -> None:
    conversation = Conversation()
    usual = conversation.answerer.answer

    def failing(data: bytes, at: int, file: int = -1) -> bytes | None:
        if data.startswith((GET % 2, POST % (2, 3) + b"abc"), at):
            raise ZeroDivisionError
        return usual(data, at)

    conversation.protocol._answer = failing
    for part in FAILING[kind]:
        assert conversation.failures == []
        conversation.say(part)
        await conversation.settle()
    assert conversation.failures == [CALLBACK]
    assert conversation.wire.closed
    conversation.say(GET % 4)
    assert len(conversation.failures) == 1


@on_loop
async def test_a_failure_of_the_watch_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = Conversation()
    monkeypatch.setattr(conversation.wire, "get_write_buffer_size", None)
    conversation.protocol.look()
    assert conversation.failures == [CALLBACK]
    assert conversation.wire.closed


@pytest.mark.parametrize("said", [b"", GET % 2, POST % (2, 9) + b"{", GET % 2 * 100])
@pytest.mark.parametrize("error", [None, ConnectionResetError()], ids=["closed", "reset"])
@on_loop
async def test_a_closed_connection_is_freed_without_a_collection(
    said: bytes, error: Exception | None
) -> None:
    gc.collect()
    gc.disable()
    try:
        conversation = Conversation()
        conversation.say(*filter(None, [said]))
        conversation.wire.close()
        conversation.protocol.connection_lost(error)
        await conversation.settle()
        left = weakref.ref(conversation.protocol)
        del conversation.protocol
        assert left() is None
    finally:
        gc.enable()
