"""The same service with a loop and without one: whatever is said to both, they answer alike."""

import contextlib
import re
from typing import Any

import pytest

from select_service import building
from select_service.loops import loop_layout as layout
from tests.fast.two_services import DATE, TIMED, Side, Told, TwoServices
from tests.loops.running import OnLoops
from tests.process.running import Client

DATED = re.compile(rb"date: [^\r]*GMT")
LENGTH = re.compile(rb"content-length: (\d+)")
OWN_SERIES = re.compile(rb"select_service_(input_loop|engine_scrapes)")
"""Of those who run, and not only stand beside each other."""
SEEDS = {0.0: 0, 0.3: 1_234_567, 0.5: 89_101_112, 0.99: 987_654_321_987}
"""Of the loop, by what a test wants to be drawn; from 0 it always draws 0."""
REQUEST_END, HEAD_END = b" HTTP/1.1\r\n", b"\r\n\r\n"


def drawn_from(seed: int) -> float:
    """What a loop draws next: xorshift, as its kernel has it."""
    seed ^= seed << 13 & 2**64 - 1
    seed ^= seed >> 7
    seed ^= seed << 17 & 2**64 - 1
    return (seed >> 11) / 2**53


class LoopSide:
    """One service with a loop, and one connection to it.

    It is told how many bytes of an answer are to be expected, since nobody else knows when the
    last of them has come.
    """

    answerer = None

    def __init__(self, flags: tuple[str, ...], seed: int) -> None:
        variables = dict(flag.split("=") for flag in flags if "=" in flag)
        settings = [flag for flag in flags if "=" not in flag]
        self._random = Told(seed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(building, "Random", lambda _: self._random)
            self.running = OnLoops(
                "--threads", "1", *settings, environment={"DYN_USE_KV_EVENTS": "false", **variables}
            )
        self.running.__enter__()
        self.selector = self.running.selector
        self.connect()

    def connect(self) -> None:
        self.client = Client(self.running.port)

    def reconnect(self) -> None:
        self.client.socket.close()
        self.connect()

    def draw(self, number: float, seed: int) -> None:
        self._random.drawn = number
        for served in self.running.served:
            with served.loop.mutex:
                served.loop.header[layout.SEED] = seed

    def said(self, parts: tuple[bytes, ...], n_bytes: int) -> bytes:
        """The first bytes of what is answered."""
        with contextlib.suppress(ConnectionError):  # it may have been refused before
            for part in parts:
                self.client.send(part)
        found = b""
        while len(found) < n_bytes and (more := self.client.socket.recv(n_bytes - len(found))):
            found += more
        return DATED.sub(b"date: " + DATE[0][1], found)

    def say(self, whole: bytes) -> bytes:
        """The answer to a usual request."""
        with self.running.client() as client:
            client.send(whole)
            found = b""
            while b"\r\n\r\n" not in found:
                found += client.socket.recv(65536)
            head, _, body = found.partition(b"\r\n\r\n")
            length = LENGTH.search(head)
            assert length is not None
            while len(body) < int(length[1]):
                body += client.socket.recv(65536)
        lines = body.splitlines()
        return head + b"\r\n\r\n" + b"\n".join(x for x in lines if not OWN_SERIES.search(x))

    def close(self) -> None:
        self.client.socket.close()
        self.running.__exit__(None, None, None)
        self.selector.check_invariants()


class LoopAndOrdinary(TwoServices):
    """`fast` has a loop."""

    def _pair(self, flags: tuple[str, ...], seed: int) -> list[Any]:
        return [LoopSide(flags, seed), Side(self._runner, False, flags, seed)]

    def say(self, *parts: bytes, drawn: float = 0.0) -> bytes:
        fast: Any = self.fast
        # One number alone is drawn from a seed.
        seed = SEEDS[drawn] if b"".join(parts).count(REQUEST_END) == 1 else 0
        number = drawn_from(seed)
        self.ordinary.draw(number)
        expected: bytes = self.ordinary.say(*parts)
        fast.draw(number, seed)
        is_refused = self.ordinary.wire.closed
        # What is wrong with a head a loop sees at the end of it.
        answer: bytes = fast.said((*parts, HEAD_END) if is_refused else parts, len(expected))
        if is_refused:
            assert fast.client.ended()
            fast.reconnect()
        assert _timeless(answer) == _timeless(expected)
        return expected

    @property
    def answered(self) -> int:
        """By the loop."""
        fast: Any = self.fast
        running: OnLoops = fast.running
        return running.answered()


def _timeless(answer: bytes) -> bytes:
    return TIMED.sub(b"", answer)
