"""A service in this process behind connections without sockets, with and without the fast path.

Of several replicas each is there twice, too.  What they tell each other is carried by hand.
"""

import asyncio
import re
from collections import deque
from random import Random
from time import monotonic
from types import TracebackType
from typing import Any, Self

import pytest
from uvicorn.server import ServerState

from select_service import building
from select_service.api.application import Application
from select_service.core.replicas import digest as replica_digest
from select_service.core.replicas import events as replica_events
from select_service.core.replicas import progress as replica_progress
from select_service.core.replicas.agreement import Agreement
from select_service.fast import keyed
from select_service.fast.keyed import KeyedAnswerer, KeyedLean, Passes
from select_service.fast.protocol import Lean, LeanProtocol
from select_service.fast.service_answerer import ServiceAnswerer
from select_service.http import protocol as http_protocol
from select_service.http.protocol import BoundedProtocol
from select_service.http.server import server_of
from select_service.settings.config import parse
from select_service.starting.wanted import wanted_of
from tests.http.wire import Wire
from tests.patience import eventually_on_loop

DATE = [(b"date", b"Sun, 06 Nov 1994 08:49:37 GMT")]
TURNS = 40
"""Of the loop, in which all that is left happens once the requests have been served."""

TIMED = re.compile(rb"within [0-9.]+ s")
"""How long something took."""
REPLICA_FLAGS = ("--replica-sync-port", "65535")
"""A replica plane, of which nobody takes the port."""


class Told(Random):
    """Draws what it is told to; ids are those of its seed."""

    drawn = 0.0

    def random(self) -> float:
        return self.drawn


class Counting(ServiceAnswerer):
    """`answered`: how many requests were answered by it."""

    answered = 0

    def answer(self, data: bytes, at: int, file: int = -1) -> bytes | None:
        found = super().answer(data, at, file)
        self.answered += found is not None
        return found


class CountingKeyed(KeyedAnswerer):
    """Counts what is answered, where all of that is counted."""

    __slots__ = ("counting",)

    def answer(self, data: bytes, at: int, file: int = -1) -> bytes | None:
        found = super().answer(data, at, file)
        self.counting.answered += found is not None
        return found


class CountingKeyedLean(KeyedLean):
    def __init__(self, passes: Passes, counting: Counting) -> None:
        super().__init__(passes)
        self._counting = counting

    def new(self, *server: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(keyed, "KeyedAnswerer", CountingKeyed)
            made: Any = super().new(*server)
        made._keyed.counting = self._counting
        return made


class Side:
    """One service with one connection."""

    def __init__(
        self, runner: asyncio.Runner, fast: bool, flags: tuple[str, ...], seed: int
    ) -> None:
        self._runner = runner
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(building, "Random", lambda _: Told(seed))
            variables = dict(flag.split("=") for flag in flags if "=" in flag)
            config = parse(
                [
                    "--threads",
                    "1",
                    "--allowed-hosts",
                    "*",
                    *(flag for flag in flags if "=" not in flag),
                ],
                {"DYN_USE_KV_EVENTS": "false", **variables},
            )
            parts = building.build(wanted_of(config, "1.2.3"))
            self.service, self.follower, self.replicas, *_ = parts
        self.selector = self.service.selector
        self.answerer = Counting(self.selector, self.service.metrics) if fast else None
        front = None if self.answerer is None else Lean(self.answerer)
        if fast and self.service.guard.is_on:
            passes = Passes(self.service.guard, self.selector, self.service.metrics)
            front = CountingKeyedLean(passes, self.answerer)
        self._config = server_of(Application(self.service), front).config
        self._config.load()
        if front is not None:
            front.say(DATE)
        self._state = ServerState()
        self._state.default_headers = DATE
        self._to_tell: deque[tuple[bytes, bytes]] = deque()
        self._agreement = Agreement()
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
        """What is answered to these parts of a stream."""
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

    def told(self, most: int) -> list[tuple[bytes, bytes]]:
        """Topics and payloads of what it tells its replicas next, in order."""
        assert self.replicas is not None
        publisher = self.replicas._publisher
        while publisher.queued:
            self._to_tell.extend(publisher._encoded())
        return [self._to_tell.popleft() for _ in range(min(most, len(self._to_tell)))]

    def hear(self, topic: bytes, payload: bytes) -> object:
        """What a replica has told.  Why that changed nothing, or how far both are apart."""
        if topic == replica_events.TOPIC:
            return self.selector.replicas.apply(replica_events.decode(payload), monotonic())
        if topic == replica_progress.TOPIC:
            return self.selector.replicas.progress.hear(replica_progress.decode(payload))
        digest = replica_digest.decode(payload)
        reason = self.selector.replicas.compare(digest, self._agreement, monotonic())
        return reason or self._agreement.difference

    def draw(self, number: float) -> None:
        self.selector.decisions._rng.drawn = number  # type: ignore[attr-defined]

    def close(self) -> None:
        self._runner.run(self.follower.stop())
        self.service.ingest.close()
        if self.replicas is not None:
            self.replicas.close()
        self.selector.check_invariants()


class TwoServices:
    """The same is said to both, and they must answer the same.

    flags: of the command line, and variables as NAME=value
    pairs: of each replica, the one with the fast path and the one without; `fast` and `ordinary`
    are those of the replica that is spoken to, the one `at`.
    """

    def __init__(self, *flags: str, replicas: int = 1) -> None:
        self._runner = asyncio.Runner()
        self.pairs = [self._pair(flags, seed) for seed in range(replicas)]
        self.turn_to(0)
        assert isinstance(self.ordinary.protocol, BoundedProtocol)

    def _pair(self, flags: tuple[str, ...], seed: int) -> list[Any]:
        return [Side(self._runner, fast, flags, seed) for fast in (True, False)]

    def turn_to(self, replica: int) -> None:
        self.at = replica
        self.fast, self.ordinary = self.pairs[replica]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for pair in self.pairs:
            for side in pair:
                side.close()
        self._runner.close()

    def reconnect(self) -> None:
        for side in (self.fast, self.ordinary):
            side.reconnect()

    def say(self, *parts: bytes, drawn: float = 0.0) -> bytes:
        answers = []
        for side in (self.fast, self.ordinary):
            side.draw(drawn)
            answers.append(TIMED.sub(b"", side.say(*parts)))
        assert answers[0] == answers[1], answers
        return answers[0]

    def carry(self, sender: int, most: int, *, is_lost: bool) -> None:
        """Something of what one replica tells, to the other one."""
        told = [side.told(most) for side in self.pairs[sender]]
        assert told[0] == told[1]
        if not is_lost:
            for topic, payload in told[0]:
                heard = [side.hear(topic, payload) for side in self.pairs[1 - sender]]
                assert heard[0] == heard[1]

    def tick(self, replica: int) -> None:
        """It tells how far its prefills are, and a digest."""
        for side in self.pairs[replica]:
            assert side.replicas is not None
            while side.replicas.tell_progress(monotonic()):
                pass
            side.replicas.tick()

    @property
    def answered(self) -> int:
        assert self.fast.answerer is not None
        return self.fast.answerer.answered
