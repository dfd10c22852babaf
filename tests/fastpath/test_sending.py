"""Tests of answers that compiled code sends at once, and of answers kept by the transport."""

import asyncio
import contextlib
import socket
from typing import Any

import pytest

from tests.builders import worker_body
from tests.builders.conversation import Conversation
from tests.builders.wire import Wire
from tests.fastpath.prompts import post, prompt_of
from tests.fastpath.requests import AIOHTTP, request
from tests.fastpath.two_services import REPLICA_FLAGS, Side

SELECT = post("/select", prompt_of(31, False), AIOHTTP)
GET = b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture
def side() -> Any:
    with asyncio.Runner() as runner:
        made = Side(runner, True, (), seed=0)
        made.send(post("/workers", worker_body(1, model_name="default")))
        yield made
        made.close()


@pytest.fixture
def pair() -> Any:
    """Return a socket and the socket of the client."""
    with contextlib.ExitStack() as stack:
        ends = [stack.enter_context(end) for end in socket.socketpair()]
        for end in ends:
            end.setblocking(False)
        yield ends


def fill(end: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            end.send(b"x" * 65536)


def test_an_answer_is_sent_at_once(side: Side, pair: Any) -> None:
    assert side.handler is not None
    ours, client = pair
    expected = side.handler.answer_request(SELECT, 0)
    assert side.handler.answer_request(SELECT, 0, ours.fileno()) == b""
    assert side.handler.end == len(SELECT)
    assert client.recv(1 << 16) == expected


def test_answers_of_verbs_are_sent_at_once(pair: Any) -> None:
    """Replicas follow the changes, so the verbs are those of the core."""
    ours, client = pair
    with asyncio.Runner() as runner:
        side = Side(runner, True, REPLICA_FLAGS, seed=0)
        side.send(post("/workers", worker_body(1, model_name="default")))
        assert side.handler is not None
        for data in (
            post("/select_and_reserve", {**prompt_of(31, False), "reservation_id": "a"}),
            request("POST /reservations/a/prefill_complete", AIOHTTP),
            request("DELETE /reservations/a", AIOHTTP),
        ):
            assert side.handler.answer_request(data, 0, ours.fileno()) == b""
            assert side.handler.end == len(data)
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        side.close()


def test_an_answer_that_cannot_be_sent_at_once_is_returned(side: Side, pair: Any) -> None:
    assert side.handler is not None
    ours, _ = pair
    expected = side.handler.answer_request(SELECT, 0)
    fill(ours)
    assert side.handler.answer_request(SELECT, 0, ours.fileno()) == expected
    ours.close()
    assert side.handler.answer_request(SELECT, 0, 10**6) == expected


def test_only_an_answer_to_all_that_is_left_is_sent(side: Side, pair: Any) -> None:
    assert side.handler is not None
    ours, client = pair
    expected = side.handler.answer_request(SELECT, 0)
    assert side.handler.answer_request(SELECT * 2, 0, ours.fileno()) == expected
    assert side.handler.end == len(SELECT)
    with pytest.raises(BlockingIOError):
        client.recv(1)


class SocketWire(Wire):
    """Wire with a socket.

    kept: number of unsent bytes
    """

    kept = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else default

    def fileno(self) -> int:
        return 17

    def get_write_buffer_size(self) -> int:
        return self.kept


class LeanConversation(Conversation):
    is_lean = True


async def test_no_answer_overtakes_bytes_that_the_transport_keeps() -> None:
    wire = SocketWire()
    conversation = LeanConversation(wire)
    files: list[int] = []
    answer = conversation.protocol._answer_request

    def noting(data: bytes, at: int, file: int = -1) -> Any:
        files.append(file)
        return answer(data, at, file)

    conversation.protocol._answer_request = noting
    conversation.send(GET % 2, GET % 2)
    wire.kept = 5
    conversation.protocol.check_timeouts()
    conversation.send(GET % 2)
    wire.kept = 0
    conversation.protocol.check_timeouts()
    conversation.send(GET % 2, GET % 1)
    conversation.protocol.check_timeouts()
    assert files == [17, -1, -1, 17, -1]
    assert conversation.protocol._socket_fd == -1  # the ordinary path has the connection
