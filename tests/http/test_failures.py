"""Tests that a bug in a callback of the event loop is counted and ends only its connection."""

import asyncio
from typing import Any

import pytest

from select_service.http import bounded_protocol as bounds
from select_service.http.bounded_protocol import FAILURE_NAME, BoundedProtocol
from tests.builders.conversation import Conversation
from tests.builders.in_process import Api

pytestmark = pytest.mark.usefixtures("_either_protocol")

GET = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n"


def fail(*_: Any) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("sent", [GET, GET * 2000], ids=["small", "large"])
async def test_a_failure_while_receiving_ends_the_connection(sent, monkeypatch):
    conversation = Conversation()
    monkeypatch.setattr(BoundedProtocol, "_parse_part", fail)
    conversation.send(sent)
    await conversation.settle()
    assert conversation.failures == [FAILURE_NAME]
    assert conversation.wire.mark_closed


async def test_a_failure_while_parsing_later_ends_the_connection(monkeypatch):
    conversation = Conversation()
    conversation.send(GET * 2000)
    assert not conversation.wire.reading
    monkeypatch.setattr(BoundedProtocol, "_parse_part", fail)
    await conversation.settle()
    assert conversation.failures == [FAILURE_NAME]
    assert conversation.wire.mark_closed


async def test_a_failure_in_writing_ends_the_connection(monkeypatch):
    conversation = Conversation()
    monkeypatch.setattr(conversation.wire, "write", fail)
    conversation.may_answer.set()
    conversation.send(GET)
    await conversation.settle()
    assert conversation.failures == [FAILURE_NAME]
    assert conversation.wire.mark_closed


async def test_a_failure_of_the_watch_ends_the_connection(monkeypatch):
    monkeypatch.setattr(bounds, "WATCH_EVERY_S", 0.001)
    monkeypatch.setattr(BoundedProtocol, "_is_unread", fail)
    conversation = Conversation()
    conversation.send(GET)
    while not conversation.failures:
        await asyncio.sleep(0.001)
    assert conversation.wire.mark_closed
    conversation.protocol.connection_lost(None)


def test_failures_of_connections_are_a_metric(api):
    try:
        fail()
    except ZeroDivisionError:
        api.service.callbacks.record_failure(FAILURE_NAME)
    text = api.get("/metrics").body
    assert f'select_service_callback_failures_total{{callback="{FAILURE_NAME}"}} 1.0' in text


@pytest.fixture
def api() -> Any:
    with Api() as service:
        yield service
