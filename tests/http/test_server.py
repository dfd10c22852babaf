"""Tests of the headers that the server passes to the protocol in front."""

import asyncio
from typing import Any

from select_service.http.http_server import make_http_server
from select_service.http.request_head import Headers


class Front:
    """Protocol factory that records the received headers."""

    def __init__(self) -> None:
        self.said: list[Headers] = []

    def __call__(self, *_: Any, **__: Any) -> asyncio.Protocol:
        return asyncio.Protocol()

    def set_common_headers(self, headers: Headers) -> None:
        self.said.append(headers)


def test_the_front_receives_only_new_headers() -> None:
    front = Front()
    application: Any = None
    server = make_http_server(application, front)
    server.config.load()

    async def ticks() -> None:
        for n in range(25):
            assert not await server.on_tick(n)

    asyncio.run(ticks())
    assert len(front.said) == 3
    assert [name for name, _ in front.said[0]] == [b"date"]
    server.should_exit = True
    assert asyncio.run(server.on_tick(25))
    assert server.config.http_protocol_class is front
