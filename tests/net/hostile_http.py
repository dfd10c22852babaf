"""Hostile HTTP servers on real sockets, for tests and for the measurement of the harm."""

import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Self

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"
SEND_BYTES = 1 << 18
DRIP_S = 0.005
SAMPLE = b'vllm:num_requests_waiting{engine="0",model_name="%d"} 1.0\n'


def _full(part: bytes) -> bytes:
    """Return as many repetitions as are sent at once."""
    return part * (SEND_BYTES // len(part))


def _endless(head: bytes, part: bytes) -> Iterator[bytes]:
    yield head
    parts = _full(part)
    while True:
        yield parts


def _dripping() -> Iterator[bytes]:
    yield CHUNKED
    while True:
        yield b"1\r\na\r\n"
        time.sleep(DRIP_S)


def _whole(body: bytes, more: bytes = b"") -> Iterator[bytes]:
    yield OK + more + b"content-length: %d\r\n\r\n" % len(body) + body


def _redirects() -> Iterator[bytes]:
    yield b"HTTP/1.1 302 Found\r\nlocation: /metrics\r\ncontent-length: 0\r\n\r\n"


BOMB = gzip.compress(bytes(16 << 20), 1)
HALF_MB = b"".join(SAMPLE % n for n in range(250_000 // len(SAMPLE % 1000))) + b"# text\n" * 40_000
"""Body of half a MB; half of the bytes are lines that matter."""
WIDE = b"vllm:num_requests_waiting 1.0\n" + b"# a line of no meaning at all\n" * (1 << 14)
"""Body of the same length where a single line matters."""

ATTACKS: dict[str, Callable[[], Iterator[bytes]]] = {
    "interim responses": lambda: _endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "headers": lambda: _endless(OK, b"a: b\r\n"),
    "one header": lambda: _endless(OK + b"a: ", b"b"),
    "chunks of a byte": lambda: _endless(CHUNKED, b"1\r\na\r\n"),
    "chunk extensions": lambda: _endless(CHUNKED + b"1;", b"a=b;"),
    "trailers": lambda: _endless(CHUNKED + b"0\r\n", b"a: b\r\n"),
    "a body": lambda: _endless(OK + b"\r\n", b"x"),
    "answers that nobody asked": lambda: _endless(b"", OK + b"content-length: 0\r\n\r\n"),
    "a slow drip": _dripping,
    "half a MB that matters": lambda: _whole(HALF_MB),
    "half a MB": lambda: _whole(WIDE),
    "a gzip bomb": lambda: _whole(BOMB, b"content-encoding: gzip\r\n"),
    "redirects": _redirects,
}
"""Bytes that a server sends to each request, by the endless or large part."""


class HostileServer:
    """Server that answers every request with an attack, each connection on a separate thread."""

    def __init__(self, attack: str) -> None:
        self._attack = ATTACKS[attack]
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self._listener.getsockname()[1]
        self.requests = 0
        self._connections: set[socket.socket] = set()

    def __enter__(self) -> Self:
        threading.Thread(target=self.run, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in tuple(self._connections):
            connection.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def run(self) -> None:
        """Accept connections until the listener is closed."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        self._connections.add(connection)
        try:
            while connection.recv(65536):
                self.requests += 1
                for part in self._attack():
                    connection.sendall(part)
        except OSError:
            pass
        finally:
            self._connections.discard(connection)
            connection.close()
