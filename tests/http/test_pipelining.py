"""Tests of bytes in any pieces and of pipelined requests, on a connection without a socket."""

import asyncio
import json
from typing import Any

import pytest

from select_service.http import bounded_protocol as bounds
from tests.builders.conversation import Conversation

pytestmark = pytest.mark.usefixtures("_either_protocol")

GET = b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST /%d HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
CHUNKED = (
    b"POST /c HTTP/1.1\r\nHost: x:80\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3;e=1\r\nabc\r\n2\r\nde\r\n0\r\nt: v\r\nu: w\r\n\r\n"
)
OFFER = (
    b"POST /h2c HTTP/1.1\r\nhost: x\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"
    b"http2-settings: AAMA\r\ncontent-length: 4\r\n\r\nbody"
)
ALL = CHUNKED + POST % (1, 5) + b"12345" + b"\r\n" + OFFER + GET % 2
ANSWERS = [(200, b"/c abcde"), (200, b"/1 12345"), (200, b"/h2c body"), (200, b"/2 ")]


async def converse(*parts: bytes) -> Conversation:
    conversation = Conversation()
    for part in parts:
        conversation.send(part)
        await conversation.settle()
    return conversation


async def test_where_bytes_are_split_changes_nothing():
    for at in range(len(ALL) + 1):
        for pause in (False, True):
            conversation = Conversation()
            conversation.send(ALL[:at])
            if pause:
                await conversation.settle()
            conversation.send(*filter(None, [ALL[at:]]))
            await conversation.settle()
            assert conversation.answers() == ANSWERS, (at, pause)
            assert conversation.refusals == []


async def test_bytes_may_come_one_by_one():
    conversation = Conversation()
    conversation.send(*(ALL[at : at + 1] for at in range(len(ALL))))
    await conversation.settle()
    assert conversation.answers() == ANSWERS


async def test_trailers_are_not_headers():
    conversation = await converse(CHUNKED)
    assert [name for name, _ in conversation.scopes[0]["headers"]] == [
        b"host",
        b"transfer-encoding",
    ]


async def test_many_requests_at_once_are_answered_in_order_and_few_are_kept():
    """A read with thousands of requests is parsed as answers go out."""

    conversation = Conversation()
    conversation.may_answer.clear()
    conversation.send(b"".join(GET % n for n in range(5000)))
    await conversation.settle()
    kept = len(conversation.ordinary.pipeline)
    assert 0 < kept <= bounds.PARSE_STEP_BYTES // len(GET % 0)
    assert not conversation.wire.reading
    conversation.may_answer.set()
    while len(conversation.asked) < 5000:
        assert len(conversation.ordinary.pipeline) <= 2 * kept
        await asyncio.sleep(0)
    await conversation.settle()
    assert conversation.answers() == [(200, b"/%d " % n) for n in range(5000)]
    assert conversation.wire.reading


async def test_a_turn_of_the_loop_parses_a_bounded_number_of_chunks():
    conversation = Conversation()
    n = 30_000
    conversation.send(b"POST /c HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    conversation.send(b"8\r\n12345678\r\n" * n)
    assert len(conversation.ordinary.cycle.body) <= (
        bounds.PARSE_STEPS_PER_ITERATION * bounds.PARSE_STEP_BYTES
    )
    while len(conversation.ordinary._unparsed):
        await asyncio.sleep(0)
    conversation.send(b"0\r\n\r\n")
    await conversation.settle()
    assert [len(body) for _, body in conversation.asked] == [8 * n]


def test_a_long_body_of_known_size_is_parsed_at_once():
    async def body() -> None:
        conversation = Conversation()
        conversation.send(POST % (1, 200_000) + b"x" * 200_000 + GET % 2)
        assert len(conversation.ordinary._unparsed) == 0
        await conversation.settle()
        assert [len(body) for _, body in conversation.asked] == [200_000, 0]

    asyncio.run(body())


async def test_a_refusal_waits_for_the_answers_before_it():
    conversation = Conversation()
    conversation.may_answer.clear()
    conversation.send(GET % 1 + GET % 2 + b"NONSENSE\r\n\r\n" + GET % 3)
    await conversation.settle()
    assert conversation.wire.written == b""
    conversation.may_answer.set()
    await conversation.settle()
    statuses = [status for status, _ in conversation.answers()]
    assert statuses == [200, 200, 400]
    assert json.loads(conversation.answers()[-1][1])["code"] == "malformed_http"
    assert conversation.refusals == [400]
    assert conversation.wire.mark_closed
    assert [path for path, _ in conversation.asked] == ["/1", "/2"]


async def test_a_body_behind_a_request_without_an_answer_is_not_late():
    """The service itself delays the body, so its time begins with its turn."""

    conversation = Conversation()
    conversation.may_answer.clear()
    conversation.send(GET % 1 + POST % (2, 5) + b"12")
    await conversation.settle()
    protocol = conversation.ordinary
    for _ in range(2):
        protocol._deadline_from = protocol.loop.time() - 2 * bounds.REQUEST_READ_S_MAX
        protocol._check_progress()
    assert conversation.wire.written == b""
    conversation.may_answer.set()
    await conversation.settle()
    assert conversation.answers() == [(200, b"/1 ")]
    protocol._deadline_from = protocol.loop.time() - 2 * bounds.REQUEST_READ_S_MAX
    protocol._check_progress()
    assert [status for status, _ in conversation.answers()] == [200, 408]
    assert conversation.wire.mark_closed


async def test_a_refused_body_behind_another_request_is_never_requested():
    conversation = Conversation()
    conversation.may_answer.clear()
    conversation.send(GET % 1 + CHUNKED[: CHUNKED.index(b"3;")] + b"xyz\r\n")
    await conversation.settle()
    conversation.may_answer.set()
    await conversation.settle()
    assert [status for status, _ in conversation.answers()] == [200, 400]
    assert [path for path, _ in conversation.asked] == ["/1"]


@pytest.mark.parametrize("behind", [b"", GET % 2, POST % (2, 5) + b"1"])
async def test_the_answered_request_learns_that_its_client_has_gone(behind):
    conversation = Conversation()
    conversation.may_answer.clear()
    conversation.send(GET % 1 + behind)
    await conversation.settle()
    conversation.protocol.connection_lost(None)
    await conversation.settle()
    assert conversation.gone == ["/1"]
    assert conversation.scopes[0]["extensions"]["select_service.connection"].is_gone
    assert len(conversation.scopes) == 1


async def test_empty_lines_do_not_keep_an_idle_connection():
    conversation = await converse(GET % 1)
    timer = conversation.ordinary.timeout_keep_alive_task
    assert timer is not None
    conversation.send(b"\r\n")
    assert conversation.ordinary.timeout_keep_alive_task is timer
    assert not timer.cancelled()
    conversation.send(GET % 2)
    assert timer.cancelled()


async def test_a_parser_without_memory_refuses(monkeypatch):
    conversation = Conversation()

    def fail(*_: Any) -> int:
        raise MemoryError

    monkeypatch.setattr(bounds, "check_head", fail)
    conversation.send(GET % 1)
    assert [status for status, _ in conversation.answers()] == [503]
