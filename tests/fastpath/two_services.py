"""A service in this process behind connections without sockets, with and without the fast path.

With several replicas, each replica exists twice, too. Tests carry events between replicas by hand.
"""

import asyncio
import re
from collections import deque
from random import Random
from time import monotonic
from typing import Any, Self

import pytest
from uvicorn.server import ServerState

from select_service.api.application import ApiApplication
from select_service.config.settings_loader import parse_config
from select_service.core.replication import digest as replica_digest
from select_service.core.replication import load_events as replica_events
from select_service.core.replication import prefill_progress as replica_progress
from select_service.core.replication.peer_agreement import PeerAgreement
from select_service.core.replication.session_events import SESSION_TOPIC, decode_session_event
from select_service.core.replication.session_exchange import (
    SESSION_DIGEST_TOPIC,
    decode_session_digest,
)
from select_service.fastpath import authenticated
from select_service.fastpath.authenticated import (
    AuthenticatedFastPath,
    AuthenticatedHandler,
    FastPathAuth,
)
from select_service.fastpath.fast_path import FastPath
from select_service.fastpath.fastpath_protocol import FastPathProtocol
from select_service.http import bounded_protocol as http_protocol
from select_service.http.bounded_protocol import BoundedProtocol
from select_service.http.http_server import make_http_server
from select_service.server import build
from select_service.server.startup_settings import validate_settings
from tests.builders.counting_handler import Counting
from tests.builders.polling import eventually_on_loop
from tests.builders.wire import Wire

DATE = [(b"date", b"Sun, 06 Nov 1994 08:49:37 GMT")]
TURNS = 40
"""Turns of the loop in which all remaining work happens after the requests are served."""

TIMED = re.compile(rb"within [0-9.]+ s")
"""Text of a duration."""
REPLICA_FLAGS = ("--replica-sync-port", "65535")
"""Replica plane on a port that no process takes."""


class PresetRandom(Random):
    """Random numbers set by the test; ids follow from the seed."""

    drawn = 0.0

    def random(self) -> float:
        return self.drawn


class CountingKeyed(AuthenticatedHandler):
    """Handler that counts authenticated answers together with all others."""

    __slots__ = ("counting",)

    def answer_request(self, data: bytes, at: int, socket_fd: int = -1) -> bytes | None:
        found = super().answer_request(data, at, socket_fd)
        self.counting.answered += found is not None
        return found


class CountingKeyedLean(AuthenticatedFastPath):
    def __init__(self, passes: FastPathAuth, counting: Counting) -> None:
        super().__init__(passes)
        self._counting = counting

    def make_protocol(self, *server: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(authenticated, "AuthenticatedHandler", CountingKeyed)
            made: Any = super().make_protocol(*server)
        made._authenticated.counting = self._counting
        return made


class Side:
    """Service with a connection."""

    def __init__(
        self, runner: asyncio.Runner, fast: bool, flags: tuple[str, ...], seed: int
    ) -> None:
        self._runner = runner
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(build, "Random", lambda _: PresetRandom(seed))
            variables = dict(flag.split("=") for flag in flags if "=" in flag)
            config = parse_config(
                [
                    "--threads",
                    "1",
                    "--allowed-hosts",
                    "*",
                    *(flag for flag in flags if "=" not in flag),
                ],
                {
                    "DYN_USE_KV_EVENTS": "false",
                    "SELECT_SERVICE_NO_ASSUMED_INDEX": "true",
                    **variables,
                },
            )
            parts = build.build_service(validate_settings(config, "1.2.3"))
            self.service, self.follower = parts.service, parts.follower
            self.replicas = parts.optional.replicas
        self.selector = self.service.selector
        # Versions of sessions without time, which would differ between two services.
        sessions: Any = self.selector.followers.sessions.directory
        sessions._is_warm, sessions._clock_ns = True, lambda now: 10**18
        self.handler = Counting(self.selector, self.service.metrics) if fast else None
        front = None if self.handler is None else FastPath(self.handler)
        if fast and self.service.guard.is_on:
            passes = FastPathAuth(self.service.guard, self.selector, self.service.metrics)
            front = CountingKeyedLean(passes, self.handler)
        self._config = make_http_server(ApiApplication(self.service), front).config
        self._config.load()
        if front is not None:
            front.set_common_headers(DATE)
        self._state = ServerState()
        self._state.default_headers = DATE
        self._to_tell: deque[tuple[bytes, bytes]] = deque()
        self._agreement = PeerAgreement()
        runner.run(self._start())

    async def _start(self) -> None:
        self.follower.start()
        self.connect()

    def connect(self) -> None:
        self.wire = Wire()
        make: Any = self._config.http_protocol_class
        self.protocol = make(self._config, self._state, {}, asyncio.get_running_loop())
        self.protocol.connection_made(self.wire)

    def send(self, *parts: bytes) -> bytes:
        """Return the answer to these parts of a stream."""
        return self._runner.run(self._send(parts))

    async def _send(self, parts: tuple[bytes, ...]) -> bytes:
        if self.wire.mark_closed:
            await self._reconnect()
        self.wire.written = b""
        for part in parts:
            if not self.wire.mark_closed:
                self.protocol.data_received(part)
            await asyncio.sleep(0)
        await eventually_on_loop(lambda: not self._state.tasks or self._is_in_a_request())
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return self.wire.written

    def _is_in_a_request(self) -> bool:
        """Return whether a part of a request has come and the service waits for the rest."""
        reads: Any = self.protocol
        if isinstance(reads, FastPathProtocol):
            reads = reads._ordinary
        return reads is not None and reads._stage != http_protocol._BETWEEN

    def reconnect(self) -> None:
        """End the connection and begin another."""
        self._runner.run(self._reconnect())

    async def _reconnect(self) -> None:
        self.protocol.connection_lost(None)
        self.connect()

    def take_events(self, most: int) -> list[tuple[bytes, bytes]]:
        """Return topics and payloads of the next events for other replicas, in order."""
        assert self.replicas is not None
        publisher = self.replicas._publisher
        while publisher.queue_length:
            self._to_tell.extend(publisher._encode_batch())
        return [self._to_tell.popleft() for _ in range(min(most, len(self._to_tell)))]

    def apply_published(self, topic: bytes, payload: bytes) -> object:
        """Apply an event of a replica; return why nothing changed, or how far both differ."""
        if topic == replica_events.EVENT_TOPIC:
            return self.selector.followers.replicas.apply_event(
                replica_events.decode_event(payload), monotonic()
            )
        if topic == replica_progress.PROGRESS_TOPIC:
            return self.selector.followers.replicas.progress.apply_progress(
                replica_progress.decode_progress(payload)
            )
        exchange = self.selector.followers.sessions
        if topic == SESSION_TOPIC:
            return exchange.apply_event(decode_session_event(payload), monotonic())
        if topic == SESSION_DIGEST_TOPIC:
            lines = decode_session_digest(payload).lines
            return [exchange.differing_parts(line, monotonic()) for line in lines]
        digest = replica_digest.decode_digest(payload)
        reason = self.selector.followers.replicas.compare_digest(
            digest, self._agreement, monotonic()
        )
        return reason or self._agreement.total_difference

    def draw(self, number: float) -> None:
        self.selector.decisions.rng.drawn = number  # type: ignore[attr-defined]

    def close(self) -> None:
        self._runner.run(self.follower.stop())
        self.service.ingest.close()
        if self.replicas is not None:
            self.replicas.close()
        self.selector.check_invariants()


class TwoServices:
    """Two services that receive the same requests and must give the same answers.

    flags: flags of the command line, and variables as NAME=value
    pairs: services of each replica, with and without the fast path
    fast, ordinary: services of the replica `at`, which receives the requests
    """

    def __init__(self, *flags: str, replicas: int = 1) -> None:
        self._runner = asyncio.Runner()
        self.pairs = [self._to_pair(flags, seed) for seed in range(replicas)]
        self.turn_to(0)
        assert isinstance(self.ordinary.protocol, BoundedProtocol)

    def _to_pair(self, flags: tuple[str, ...], seed: int) -> list[Any]:
        return [Side(self._runner, fast, flags, seed) for fast in (True, False)]

    def turn_to(self, replica: int) -> None:
        self.at = replica
        self.fast, self.ordinary = self.pairs[replica]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pair in self.pairs:
            for side in pair:
                side.close()
        self._runner.close()

    def reconnect(self) -> None:
        for side in (self.fast, self.ordinary):
            side.reconnect()

    def send(self, *parts: bytes, drawn: float = 0.0) -> bytes:
        answers = []
        for side in (self.fast, self.ordinary):
            side.draw(drawn)
            answers.append(TIMED.sub(b"", side.send(*parts)))
        assert answers[0] == answers[1], answers
        return answers[0]

    def carry(self, sender: int, most: int, *, is_lost: bool) -> None:
        """Carry some events of a replica to the other replica."""
        told = [side.take_events(most) for side in self.pairs[sender]]
        assert told[0] == told[1]
        if not is_lost:
            for topic, payload in told[0]:
                heard = [side.apply_published(topic, payload) for side in self.pairs[1 - sender]]
                assert heard[0] == heard[1]

    def tick(self, replica: int) -> None:
        """Publish the progress of prefills and a digest."""
        for side in self.pairs[replica]:
            assert side.replicas is not None
            while side.replicas.publish_progress(monotonic()):
                pass
            side.replicas.publish_digest()

    @property
    def answered(self) -> int:
        assert self.fast.handler is not None
        return self.fast.handler.answered
