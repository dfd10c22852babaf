"""Tests of the parts of uvicorn and httptools on which `select_service.http` relies.

A release that fails here needs a look at the contract at the top of `http/protocol.py` before the
bounds in pyproject.toml are raised.
"""

import asyncio
import hashlib
import inspect
from collections.abc import Callable
from typing import Any

import httptools
import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from tests.builders.wire import Wire

POST = b"POST /%d HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
PROTOCOL_STATE = """
    access_log access_logger app app_state asgi_version client config connections cycle
    expect_100_continue flow headers limit_concurrency logger loop parser pipeline root_path scheme
    scope server server_state tasks timeout_keep_alive timeout_keep_alive_task transport url
    ws_protocol_class
"""
CYCLE_STATE = """
    access_log access_logger body chunked_encoding default_headers disconnected
    expected_content_length flow keep_alive logger message_event more_body on_response
    response_complete response_started scope transport waiting_for_100_continue
"""
REPLACED = {
    HttpToolsProtocol.data_received: "010a7ae59a5d",
    HttpToolsProtocol.send_400_response: "ae5a4a3782b6",
    uvicorn.Server.serve: "112ef41af521",
}
"""Functions of uvicorn that this service replaces, with the digest of the source."""


class Scene:
    """uvicorn's own protocol, and an application that reads and answers on demand."""

    def __init__(self) -> None:
        self.scopes: list[dict[str, Any]] = []
        self.receive: list[dict[str, Any]] = []
        self.may_read, self.may_answer = asyncio.Event(), asyncio.Event()
        self.transport = Wire()
        self.config = uvicorn.Config(
            self, lifespan="off", ws="none", proxy_headers=False, access_log=False, log_config=None
        )
        self.config.load()
        state = ServerState()
        self.protocol = HttpToolsProtocol(self.config, state, {}, asyncio.get_running_loop())
        self.protocol.connection_made(self.transport)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        await self.may_read.wait()
        self.receive.append(await receive())
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_the_state_has_the_expected_attributes() -> None:
    """A new attribute may be a new bound, or a new way past a bound of this service."""
    scene = Scene()
    scene.protocol.data_received(POST % (1, 0))
    assert set(vars(scene.protocol)) == set(PROTOCOL_STATE.split())
    assert set(vars(scene.protocol.cycle)) == set(CYCLE_STATE.split())


@pytest.mark.parametrize("function", REPLACED, ids=lambda function: function.__qualname__)
def test_replaced_functions_have_the_expected_source(function: Callable[..., Any]) -> None:
    source = inspect.getsource(function)
    assert hashlib.sha256(source.encode()).hexdigest()[:12] == REPLACED[function]


async def test_the_application_is_called_as_it_was_given() -> None:
    scene = Scene()
    assert scene.config.app is scene
    assert scene.config.loaded_app is scene


async def test_headers_are_the_list_of_the_scope_and_begin_anew_with_each_request() -> None:
    scene = Scene()
    scene.protocol.data_received(
        b"POST /1?q HTTP/1.1\r\nhost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    scope, headers = scene.protocol.scope, scene.protocol.headers
    assert scene.protocol.url == b"/1?q"
    assert scope["headers"] is headers
    assert headers == [(b"host", b"x"), (b"transfer-encoding", b"chunked")]
    scene.protocol.headers = []
    scene.protocol.data_received(b"0\r\na: b\r\n\r\n")
    assert scope["headers"] is headers
    assert len(headers) == 2
    scene.protocol.data_received(POST % (2, 0))
    assert scene.protocol.scope is not scope
    assert len(scene.protocol.headers) == 2


async def test_the_newest_pipelined_request_is_the_cycle_and_the_leftmost() -> None:
    scene = Scene()
    protocol = scene.protocol
    protocol.data_received(POST % (1, 0))
    first = protocol.cycle
    assert not protocol.pipeline
    protocol.data_received(POST % (2, 0) + POST % (3, 0))
    assert [cycle.scope["path"] for cycle, _ in protocol.pipeline] == ["/3", "/2"]
    assert protocol.cycle is protocol.pipeline[0][0]
    scene.may_read.set()
    await turns()
    assert [scope["path"] for scope in scene.scopes] == ["/1"]
    assert not first.response_started
    scene.may_answer.set()
    await turns()
    assert [scope["path"] for scope in scene.scopes] == ["/1", "/2", "/3"]
    assert first.response_started
    assert first.response_complete
    assert not protocol.pipeline


async def test_reading_pauses_above_a_limit_and_behind_a_request_until_resumed() -> None:
    scene = Scene()
    protocol, transport = scene.protocol, scene.transport
    assert type(protocol.flow) is FlowControl
    protocol.data_received(POST % (1, HIGH_WATER_LIMIT + 1) + b"x" * HIGH_WATER_LIMIT)
    assert transport.reading
    protocol.data_received(b"x")
    assert not transport.reading
    assert len(protocol.cycle.body) == HIGH_WATER_LIMIT + 1
    scene.may_read.set()
    await turns()
    assert transport.reading
    assert protocol.cycle.body == b""
    protocol.data_received(POST % (2, 0))
    assert not transport.reading
    scene.may_answer.set()
    await turns()
    assert transport.reading


async def test_a_receive_ends_with_the_event_of_its_cycle() -> None:
    scene = Scene()
    scene.may_read.set()
    scene.protocol.data_received(POST % (1, 5))
    await turns()
    cycle = scene.protocol.cycle
    assert scene.receive == []
    cycle.disconnected = True
    cycle.message_event.set()
    await turns()
    assert scene.receive == [{"type": "http.disconnect"}]
    scene.may_answer.set()
    await turns()
    assert scene.transport.written == b""


async def test_only_the_newest_request_learns_of_a_lost_connection() -> None:
    """Older requests are not notified, which is why this service does so."""
    scene = Scene()
    protocol = scene.protocol
    protocol.data_received(POST % (1, 0))
    first = protocol.cycle
    protocol.data_received(POST % (2, 0))
    protocol.connection_lost(None)
    assert protocol.cycle.disconnected
    assert not first.disconnected
    assert protocol not in protocol.connections
    assert protocol.parser is None
    scene.may_read.set()
    scene.may_answer.set()
    await turns()


async def test_the_timer_of_an_idle_connection_begins_with_an_answer() -> None:
    scene = Scene()
    protocol = scene.protocol
    assert protocol in protocol.connections
    protocol.data_received(POST % (1, 0))
    assert protocol.timeout_keep_alive_task is None
    scene.may_read.set()
    scene.may_answer.set()
    await turns()
    assert protocol.timeout_keep_alive_task is not None
    protocol._unset_keepalive_if_required()
    assert protocol.timeout_keep_alive_task is None


def test_status_lines_are_ready() -> None:
    assert STATUS_LINE[431] == b"HTTP/1.1 431 Request Header Fields Too Large\r\n"


def test_the_server_has_the_parts_that_the_product_reuses() -> None:
    server = uvicorn.Server(uvicorn.Config(lambda: None))
    assert server._captured_signals == []
    assert server.server_state.connections == set()
    assert inspect.iscoroutinefunction(server._serve)
    with server.capture_signals():
        pass
    source = inspect.getsource(uvicorn.Server._serve)
    assert "await self.shutdown(sockets=sockets)" in source
    assert "await self.main_loop()" in source
    assert "self.should_exit" in inspect.getsource(uvicorn.Server.on_tick)
    assert "await self.on_tick(" in inspect.getsource(uvicorn.Server.main_loop)
    shutdown = inspect.getsource(uvicorn.Server.shutdown)
    assert "for server in self.servers" in shutdown
    assert "connection.shutdown()" in shutdown


async def test_a_tick_makes_new_headers_in_a_new_list_once_a_second() -> None:
    server = uvicorn.Server(uvicorn.Config(lambda: None, server_header=False))
    server.config.load()
    await server.on_tick(0)
    first = server.server_state.default_headers
    assert [name for name, _ in first] == [b"date"]
    await server.on_tick(1)
    assert server.server_state.default_headers is first
    await server.on_tick(10)
    assert server.server_state.default_headers is not first
    serve = inspect.getsource(uvicorn.Server._serve)
    assert serve.index("await self.startup(") < serve.index("await self.main_loop(")


def test_any_callable_may_make_protocols() -> None:
    def make() -> None: ...

    config = uvicorn.Config(lambda: None, http=make)  # type: ignore[arg-type]
    config.load()
    assert config.http_protocol_class is make


class Callbacks:
    """Callbacks that httptools calls, in order."""

    def __init__(self) -> None:
        self.called: list[tuple[Any, ...]] = []
        self.error: Exception | None = None

    def on_message_begin(self) -> None:
        self.called.append(("begin",))

    def on_url(self, url: bytes) -> None:
        self.called.append(("url", url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self.called.append(("header", name, value))

    def on_headers_complete(self) -> None:
        self.called.append(("headers",))
        if self.error is not None:
            raise self.error

    def on_body(self, body: bytes) -> None:
        self.called.append(("body", body))

    def on_message_complete(self) -> None:
        self.called.append(("complete",))


def test_httptools_calls_in_this_order() -> None:
    found = Callbacks()
    parser = httptools.HttpRequestParser(found)
    head = b"\r\nPOST /u HTTP/1.1\r\na: b\r\ntransfer-encoding: chunked\r\n\r\n"
    for part in (head, b"2;e=1\r\nxy\r\n", b"0\r\n", b"t: ", b"v\r\n", b"\r\n\r\n"):
        parser.feed_data(memoryview(part))
    assert found.called == [
        ("begin",),
        ("url", b"/u"),
        ("header", b"a", b"b"),
        ("header", b"transfer-encoding", b"chunked"),
        ("headers",),
        ("body", b"xy"),
        ("header", b"t", b"v"),
        ("complete",),
    ]
    assert parser.get_http_version() == "1.1"
    assert parser.get_method() == b"POST"
    assert not parser.should_upgrade()


def test_an_error_of_a_callback_is_the_context_of_the_parsers() -> None:
    found = Callbacks()
    found.error = KeyError("ours")
    with pytest.raises(httptools.HttpParserError) as raised:
        httptools.HttpRequestParser(found).feed_data(POST % (1, 0))
    assert raised.value.__context__ is found.error


def test_an_offer_of_another_protocol_ends_with_its_head() -> None:
    found = Callbacks()
    parser = httptools.HttpRequestParser(found)
    head = b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 4\r\n\r\n"
    with pytest.raises(httptools.HttpParserUpgrade) as raised:
        parser.feed_data(head + b"body")
    assert raised.value.args == (len(head),)
    assert parser.should_upgrade()
    assert found.called[-2:] == [("headers",), ("complete",)]
