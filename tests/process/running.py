"""The real command as a process of its own: its log, its exit status, raw sockets to it."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self

START_S_MAX = 60.0
ANSWER_S_MAX = 20.0


class Answer(NamedTuple):
    """`body` is decoded JSON where the answer says it is, else bytes."""

    status: int
    headers: dict[str, str]
    body: Any


class Client:
    """One connection; what is sent goes out as it is."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), ANSWER_S_MAX)
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> Answer:
        """The next answer.  Raises EOFError when the connection ends before it."""
        while b"\r\n\r\n" not in self._rest:
            self._receive()
        head, self._rest = self._rest.split(b"\r\n\r\n", 1)
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        size = int(headers.get("content-length", "0"))
        while len(self._rest) < size:
            self._receive()
        raw, self._rest = self._rest[:size], self._rest[size:]
        is_json = headers.get("content-type") == "application/json"
        return Answer(int(first.split()[1]), headers, json.loads(raw) if is_json else raw)

    def ended(self) -> bool:
        """Does the service close the connection, with nothing more to read?"""
        try:
            return self._rest == b"" and self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _receive(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            raise EOFError
        self._rest += data


def request(method: str, path: str, body: Any = None, **headers: str) -> bytes:
    """A whole request.  `body` goes out as JSON, or as it is when it is bytes."""
    content = (
        b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    )
    fields = {"host": "x", "content-type": "application/json"}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None:
        fields = {"content-length": str(len(content))} | fields
    head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in fields.items())
    return head.encode() + b"\r\n" + content


def run_to_end(*arguments: str, **environment: str) -> tuple[int, str, str]:
    """Exit status, output and error output of a command that is expected to end by itself."""
    done = subprocess.run(
        _command(arguments),
        env=_environment(environment),
        capture_output=True,
        text=True,
        timeout=START_S_MAX,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


class Running:
    """The service on a port of its own, from its `listening` line to its end."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.lines: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            _command(("--host", "127.0.0.1", "--port", "0", "--log-format", "json", *arguments)),
            env=_environment({"DYN_USE_KV_EVENTS": "false", **environment}),
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._log = self._read_log()
        self.port = int(self.line("listening")["port"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(ANSWER_S_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            assert self.process.stderr is not None
            self.process.stderr.close()

    def client(self) -> Client:
        return Client(self.port)

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        with self.client() as client:
            client.send(request(method, path, body, **headers))
            return client.answer()

    def line(self, message: str) -> dict[str, Any]:
        """The next log line with this message."""
        for line in self._log:
            self.lines.append(line)
            if line["message"] == message:
                return line
        raise AssertionError(f"ended without `{message}`: {self.lines}")

    def rest_of_log(self) -> list[dict[str, Any]]:
        """Everything logged until the process ends."""
        self.lines += self._log
        return self.lines

    def stop(self, number: int) -> tuple[int, float]:
        """Send a signal.  Exit status and the seconds until then."""
        begin = time.monotonic()
        self.process.send_signal(number)
        return self.process.wait(ANSWER_S_MAX), time.monotonic() - begin

    def _read_log(self) -> Iterator[dict[str, Any]]:
        assert self.process.stderr is not None
        for text in self.process.stderr:
            yield json.loads(text)


def _command(arguments: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "select_service", *arguments]


def _environment(given: dict[str, str]) -> dict[str, str]:
    """`given` and what Python needs; none of the caller's own settings."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("NUMBA_")}
    kept |= {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "PYTHONPATH": os.getcwd(), **given}
