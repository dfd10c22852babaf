"""Tests of the bound on concurrent dumps, with simultaneous requests."""

import asyncio
import importlib
import json
import threading
from typing import Any

import pytest

from select_service.api.application import ApiApplication
from select_service.api.process_limits import DUMPS_MAX
from select_service.http import bounded_stream
from tests.builders.in_process import Api

AT_ONCE = 24
FORMS = (b"application/json", b"application/msgpack")


class Reader:
    """An ASGI client of GET /dump that takes the head of an answer, and the rest on permission."""

    def __init__(self, accept: bytes, may_go_on: asyncio.Event) -> None:
        self.scope = {
            "type": "http",
            "asgi": {"spec_version": "2.3"},
            "method": "GET",
            "path": "/dump",
            "raw_path": b"/dump",
            "query_string": b"",
            "headers": [(b"accept", accept)],
        }
        self.status = 0
        self.body = b""
        self.gone = asyncio.Event()
        self._charge_quotas = may_go_on

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        if message["type"] == "http.response.body":
            await self._charge_quotas.wait()
            self.body += message["body"]


async def wait_for_heads(api: Api, readers: list[Reader]) -> None:
    """Wait until every reader has the head of its answer."""
    while not all(reader.status for reader in readers):
        await asyncio.sleep(0)


def refused_readers(readers: list[Reader]) -> list[Reader]:
    return [reader for reader in readers if reader.status == 503]


@pytest.mark.parametrize("accept", FORMS)
def test_only_a_bounded_number_of_concurrent_dumps_is_sent(fleet, accept):
    app = ApiApplication(fleet.service)

    async def ask() -> list[Reader]:
        may_go_on = asyncio.Event()
        readers = [Reader(accept, may_go_on) for _ in range(AT_ONCE)]
        asked = [asyncio.create_task(app(r.scope, r.receive, r.send)) for r in readers]
        await wait_for_heads(fleet, readers)
        assert fleet.service.limits.dumps.used == DUMPS_MAX
        may_go_on.set()
        await asyncio.gather(*asked)
        return readers

    readers = fleet.wait_for(ask())
    assert len(refused_readers(readers)) == AT_ONCE - DUMPS_MAX
    assert {json.loads(reader.body)["code"] for reader in refused_readers(readers)} == {
        "capacity_exceeded"
    }
    assert fleet.service.limits.dumps.used == 0


@pytest.mark.parametrize("accept", FORMS)
def test_a_disconnected_client_gives_its_permit_back(fleet, accept):
    app = ApiApplication(fleet.service)

    async def ask_and_leave() -> None:
        for _ in range(2 * DUMPS_MAX):
            reader = Reader(accept, asyncio.Event())
            asked = asyncio.create_task(app(reader.scope, reader.receive, reader.send))
            await wait_for_heads(fleet, [reader])
            assert reader.status == 200
            reader.gone.set()
            await asked

    fleet.wait_for(ask_and_leave())
    assert fleet.service.limits.dumps.used == 0


def test_an_answer_that_cannot_be_sent_gives_its_permit_back(fleet):
    app = ApiApplication(fleet.service)

    async def ask() -> None:
        reader = Reader(FORMS[0], asyncio.Event())

        async def send(message: Any) -> None:
            raise OSError("broken")

        await app(reader.scope, reader.receive, send)

    fleet.wait_for(ask())
    assert fleet.service.limits.dumps.used == 0


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_modules_for_streams_are_not_imported_on_the_event_loop(fleet, method, monkeypatch):
    threads: list[threading.Thread] = []

    def noting(name: str) -> None:
        threads.append(threading.current_thread())
        importlib.import_module(name)

    monkeypatch.setattr(bounded_stream, "import_module", noting)
    assert fleet.call(method, "/dump").status == 200
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()
