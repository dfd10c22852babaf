"""A service in this process behind connections without sockets, with and without the fast path."""

import asyncio
import re
from random import Random
from types import TracebackType
from typing import Any, Self

import pytest
from uvicorn.server import ServerState

from select_service import app
from select_service.api.application import Application
from select_service.fast.protocol import Lean, LeanProtocol
from select_service.fast.service_answerer import ServiceAnswerer
from select_service.http import protocol as http_protocol
from select_service.http.protocol import BoundedProtocol
from select_service.http.server import server_of
from select_service.settings.admission_rules import admission_rules
from select_service.settings.config import parse
from tests.http.conversation import Wire
from tests.patience import eventually_on_loop

DATE = [(b"date", b"Sun, 06 Nov 1994 08:49:37 GMT")]
TURNS = 40
"""Of the loop, in which all that is left happens once the requests have been served."""

OWN = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}|within [0-9.]+ s")
"""Made up ids, and how long something took."""


class Told(Random):
    """Draws what it is told to."""

    drawn = 0.0

    def random(self) -> float:
        return self.drawn


class Counting(ServiceAnswerer):
    """`answered`: how many requests were answered by it."""

    answered = 0

    def answer(self, data: bytes, at: int) -> bytes | None:
        found = super().answer(data, at)
        self.answered += found is not None
        return found


class Side:
    """One service with one connection."""

    def __init__(self, runner: asyncio.Runner, fast: bool, flags: tuple[str, ...]) -> None:
        self._runner = runner
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(app, "Random", Told)
            config = parse(["--threads", "1", *flags], {"DYN_USE_KV_EVENTS": "false"})
            self.service, self.follower, self.replicas = app.build(
                config, admission_rules(config), "1"
            )
        self.selector = self.service.selector
        self.answerer = Counting(self.selector, self.service.metrics) if fast else None
        front = None if self.answerer is None else Lean(self.answerer)
        self._config = server_of(Application(self.service), front).config
        self._config.load()
        if front is not None:
            front.say(DATE)
        self._state = ServerState()
        self._state.default_headers = DATE
        runner.run(self._start())

    async def _start(self) -> None:
        self.follower.start()
        self.connect()

    def connect(self) -> None:
        self.wire = Wire()
        make: Any = self._config.http_protocol_class
        self.protocol = make(self._config, self._state, {}, asyncio.get_running_loop())
        self.protocol.connection_made(self.wire)

    def say(self, *parts: bytes) -> bytes:
        """What is answered to these parts of a stream, without made up ids."""
        return self._runner.run(self._say(parts))

    async def _say(self, parts: tuple[bytes, ...]) -> bytes:
        if self.wire.closed:
            await self._reconnect()
        self.wire.written = b""
        for part in parts:
            if not self.wire.closed:
                self.protocol.data_received(part)
            await asyncio.sleep(0)
        await eventually_on_loop(lambda: not self._state.tasks or self._is_in_a_request())
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return self.wire.written

    def _is_in_a_request(self) -> bool:
        """Has a part of a request come, for whose rest the service waits?"""
        reads: Any = self.protocol
        if isinstance(reads, LeanProtocol):
            reads = reads._ordinary
        return reads is not None and reads._stage != http_protocol._BETWEEN

    def reconnect(self) -> None:
        """The client leaves, and another one comes."""
        self._runner.run(self._reconnect())

    async def _reconnect(self) -> None:
        self.protocol.connection_lost(None)
        self.connect()

    def draw(self, number: float) -> None:
        self.selector._decisions._rng.drawn = number  # type: ignore[attr-defined]

    def close(self) -> None:
        self._runner.run(self.follower.stop())
        self.service.ingest.close()
        self.selector.check_invariants()


class TwoServices:
    """The same is said to both, and they must answer the same."""

    def __init__(self, *flags: str) -> None:
        self._runner = asyncio.Runner()
        self.fast, self.ordinary = (Side(self._runner, fast, flags) for fast in (True, False))
        assert isinstance(self.ordinary.protocol, BoundedProtocol)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for side in (self.fast, self.ordinary):
            side.close()
        self._runner.close()

    def reconnect(self) -> None:
        for side in (self.fast, self.ordinary):
            side.reconnect()

    def say(self, *parts: bytes, drawn: float = 0.0) -> bytes:
        answers = []
        for side in (self.fast, self.ordinary):
            side.draw(drawn)
            answers.append(OWN.sub(b"its own", side.say(*parts)))
        assert answers[0] == answers[1], answers
        return answers[0]

    @property
    def answered(self) -> int:
        assert self.fast.answerer is not None
        return self.fast.answerer.answered
