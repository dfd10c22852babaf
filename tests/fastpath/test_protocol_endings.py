"""Tests of the ends of connections: by time, by the server, by the client or by a failure."""

import gc
import weakref
from typing import Any

import pytest

from select_service.fastpath.fastpath_protocol import REQUESTS_PER_ITERATION
from select_service.fastpath.timeout_watch import CHECKS_PER_ITERATION, TimeoutWatch
from select_service.http import bounded_protocol as bounds
from select_service.http.bounded_protocol import CROWDED_KEEP_ALIVE_S, FAILURE_NAME, KEEP_ALIVE_S
from tests.builders.conversation import Conversation
from tests.builders.polling import eventually_on_loop
from tests.fastpath.lean_scenes import GET, POST, looks, slow_reader

pytestmark = pytest.mark.usefixtures("lean_connections")


# Time


@pytest.mark.parametrize("said", [b"", POST % (2, 5) + b"123"], ids=["nothing", "half a body"])
async def test_a_request_that_does_not_come_to_its_end_is_timed_out(said):
    conversation = Conversation()
    conversation.send(*filter(None, [said]))
    for _ in range(looks(bounds.REQUEST_READ_S_MAX) - 1):
        conversation.protocol.check_timeouts()
    assert conversation.wire.written == b""
    conversation.protocol.check_timeouts()
    assert [status for status, _ in conversation.answers()] == [408]
    assert conversation.wire.mark_closed
    await conversation.settle()


@pytest.mark.parametrize("path", [2, 1], ids=["usual", "ordinary"])
async def test_an_idle_connection_ends(path):
    conversation = Conversation()
    conversation.send(GET % 2)
    for _ in range(3):
        conversation.send(GET % path)
        await conversation.settle()
        for _ in range(looks(KEEP_ALIVE_S) - 1):
            conversation.protocol.check_timeouts()
        assert not conversation.wire.mark_closed
    conversation.protocol.check_timeouts()
    assert conversation.wire.mark_closed
    assert conversation.refusals == []


@pytest.mark.parametrize("path", [2, 1], ids=["usual", "ordinary"])
async def test_an_idle_connection_ends_sooner_where_there_are_many(path, monkeypatch):
    conversation = Conversation()
    conversation.send(GET % path)
    await conversation.settle()
    for _ in range(2 * looks(CROWDED_KEEP_ALIVE_S)):
        conversation.protocol.check_timeouts()
    assert not conversation.wire.mark_closed
    monkeypatch.setattr(bounds, "CONNECTIONS_MAX", 1)
    conversation.protocol.check_timeouts()
    assert conversation.wire.mark_closed


async def test_empty_lines_do_not_keep_an_idle_connection():
    conversation = Conversation()
    conversation.send(GET % 2)
    for _ in range(looks(KEEP_ALIVE_S)):
        conversation.send(b"\r\n")
        await conversation.settle()
        assert not conversation.wire.mark_closed
        conversation.protocol.check_timeouts()
    assert conversation.wire.mark_closed


async def test_a_request_without_an_answer_is_not_idle():
    conversation = Conversation()
    conversation.may_answer.clear()
    conversation.send(GET % 2)
    await conversation.settle()
    for _ in range(2 * looks(KEEP_ALIVE_S)):
        conversation.protocol.check_timeouts()
    assert not conversation.wire.mark_closed
    conversation.may_answer.set()
    await conversation.settle()
    assert conversation.answers() == [(200, b"/2 ")]


async def test_a_client_that_reads_nothing_of_an_answer_is_cut_off():
    conversation, wire = slow_reader()
    for n in range(2):
        conversation.send(GET % (2 * 10**n))
        for _ in range(looks(bounds.UNREAD_S_MAX)):
            conversation.protocol.check_timeouts()
            assert not wire.mark_closed
        if n == 0:
            wire.take()
    conversation.protocol.check_timeouts()
    assert wire.mark_closed


async def test_one_watch_looks_at_all_and_ends_with_the_last(monkeypatch):
    monkeypatch.setattr(bounds, "WATCH_EVERY_S", 0.001)
    seen: list[int] = []

    class CheckedConnection:
        def check_timeouts(self) -> None:
            seen.append(1)

    connections: Any = {CheckedConnection() for _ in range(2 * CHECKS_PER_ITERATION + 1)}
    watch = TimeoutWatch()
    watch.on(connections)
    watch.on(connections)
    await eventually_on_loop(lambda: len(seen) >= len(connections))
    connections.clear()
    await eventually_on_loop(lambda: not watch._is_running)
    connections.add(CheckedConnection())
    watch.on(connections)
    seen.clear()
    await eventually_on_loop(lambda: seen)
    connections.clear()


async def test_a_turn_of_the_watch_looks_at_a_bounded_number():
    conversations = [Conversation() for _ in range(3)]
    watch = TimeoutWatch()
    watch._connections = {each.protocol for each in conversations}
    watch._unchecked = [conversations[0].protocol] * (CHECKS_PER_ITERATION + 1)
    watch._check_share()
    assert len(watch._unchecked) == 1


# The end


async def test_a_server_that_ends_closes_idle_connections():
    for said in (b"", GET % 2, GET % 2 + b"GET /"):
        conversation = Conversation()
        conversation.send(*filter(None, [said]))
        conversation.protocol.shutdown()
        assert conversation.wire.mark_closed, said


async def test_a_server_that_ends_answers_a_begun_request():
    conversation = Conversation()
    conversation.send(POST % (2, 3) + b"a")
    await conversation.settle()
    conversation.protocol.shutdown()
    assert not conversation.wire.mark_closed
    conversation.send(b"bc")
    await conversation.settle()
    assert conversation.answers() == [(200, b"/2 abc")]
    assert b"connection: close" in conversation.wire.written
    assert conversation.wire.mark_closed


@pytest.mark.parametrize("said", [GET % 2, GET % 3, POST % (2, 3) + b"a"])
async def test_a_client_that_goes_is_forgotten(said):
    conversation = Conversation()
    conversation.may_answer.clear()
    conversation.send(said)
    await conversation.settle()
    conversation.protocol.connection_lost(None)
    assert conversation.state.connections == set()
    await conversation.settle()
    assert conversation.gone == [f"/{said.split(b'/')[1][:1].decode()}"]
    assert conversation.wire.written == b""
    conversation.protocol.check_timeouts()


FAILING = {
    "first": [GET % 2],
    "not the first": [GET % 4, GET % 2],
    "behind another": [GET % 4 + GET % 2],
    "in a later turn": [GET % 4 * (REQUESTS_PER_ITERATION + 1) + GET % 2],
    "after a rest": [POST % (2, 3) + b"a", b"bc"],
    "after an ordinary one": [GET % 1, GET % 2],
}


@pytest.mark.parametrize("kind", FAILING)
async def test_a_failure_of_the_answerer_ends_the_connection(kind):
    conversation = Conversation()
    usual = conversation.handler.answer_request

    def failing(data: bytes, at: int, file: int = -1) -> bytes | None:
        if data.startswith((GET % 2, POST % (2, 3) + b"abc"), at):
            raise ZeroDivisionError
        return usual(data, at)

    conversation.protocol._answer_request = failing
    for part in FAILING[kind]:
        assert conversation.failures == []
        conversation.send(part)
        await conversation.settle()
    assert conversation.failures == [FAILURE_NAME]
    assert conversation.wire.mark_closed
    conversation.send(GET % 4)
    assert len(conversation.failures) == 1


async def test_a_failure_of_the_watch_ends_the_connection(monkeypatch):
    conversation = Conversation()
    monkeypatch.setattr(conversation.wire, "get_write_buffer_size", None)
    conversation.protocol.check_timeouts()
    assert conversation.failures == [FAILURE_NAME]
    assert conversation.wire.mark_closed


@pytest.mark.parametrize("said", [b"", GET % 2, POST % (2, 9) + b"{", GET % 2 * 100])
@pytest.mark.parametrize("error", [None, ConnectionResetError()], ids=["closed", "reset"])
async def test_a_closed_connection_is_freed_without_a_collection(said, error):
    gc.collect()
    gc.disable()
    try:
        conversation = Conversation()
        conversation.send(*filter(None, [said]))
        conversation.wire.close()
        conversation.protocol.connection_lost(error)
        await conversation.settle()
        left = weakref.ref(conversation.protocol)
        del conversation.protocol
        assert left() is None
    finally:
        gc.enable()
