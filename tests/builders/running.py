"""The real command as a process of its own: its log, its exit status, raw sockets to it."""

import contextlib
import json
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.builders.launched_process import (
    ANSWER_S_MAX,
    START_S_MAX,
    LaunchedProcess,
    free_port,
    own_command,
    own_environment,
)
from tests.builders.polling import eventually


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

    def __exit__(self, *_: object) -> None:
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

    def rest(self) -> bytes:
        """All that is still to come until the connection ends."""
        with contextlib.suppress(EOFError):
            while True:
                self._receive()
        return self._rest

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
    fields = {"host": "localhost", "content-type": "application/json"}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None:
        fields = {"content-length": str(len(content))} | fields
    head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in fields.items())
    return head.encode() + b"\r\n" + content


def run_to_end(
    *arguments: str, module: str = "select_service", **environment: str
) -> tuple[int, str, str]:
    """Exit status, output and error output of a command that is expected to end by itself."""
    return run_command(own_command(*arguments, module=module), environment)


def run_script(script: str, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """As `run_to_end`, of some lines of Python."""
    return run_command((sys.executable, "-c", script, *arguments), environment)


def run_command(
    command: Sequence[str], environment: Mapping[str, str], folder: Path | None = None
) -> tuple[int, str, str]:
    done = subprocess.run(
        command,
        cwd=folder,
        env=own_environment(environment),
        capture_output=True,
        text=True,
        timeout=START_S_MAX,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def complaint(errors: str) -> str:
    """What a command that ended says of its settings: one line, besides what it is busy with."""
    mark = "select-service: error: "
    assert "Traceback" not in errors
    (line,) = [line for line in errors.splitlines() if line.startswith(mark)]
    return line.removeprefix(mark)


class Reached:
    """A service on a port of the loopback interface, wherever it runs."""

    def __init__(self, port: int) -> None:
        self.port = port

    def client(self) -> Client:
        return Client(self.port)

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        with self.client() as client:
            client.send(request(method, path, body, **headers))
            return client.answer()


class Running(Reached):
    """The service on a port of its own, from its first answer to its end; its log is JSON."""

    def __init__(
        self,
        *arguments: str,
        module: str = "select_service",
        trust: ssl.SSLContext | None = None,
        **environment: str,
    ) -> None:
        """module: whose command is run; the service's own unless a test changes a constant.

        trust: as in `LaunchedProcess`
        """
        super().__init__(free_port())
        place = ("--host", "127.0.0.1", "--port", str(self.port), "--allowed-hosts", "*")
        place += ("--log-format", "json")
        self._launched = LaunchedProcess(
            own_command(*place, *arguments, module=module),
            own_environment(
                {
                    "DYN_USE_KV_EVENTS": "false",
                    "SELECT_SERVICE_NO_ASSUMED_INDEX": "true",
                    **environment,
                }
            ),
            self.port,
            trust=trust,
        )
        self._launched.wait_until_healthy()
        self.process = self._launched.process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._launched.end()

    def all_lines(self) -> list[dict[str, Any]]:
        """The whole log so far."""
        return self._launched.log_lines()

    def lines(self, message: str) -> list[dict[str, Any]]:
        """The log lines with this message so far."""
        return [line for line in self._launched.log_lines() if line["message"] == message]

    def line(self, message: str, number: int = 1) -> dict[str, Any]:
        """The first log line with this message, or a later one, wherever it stands; awaits it."""
        return eventually(lambda: self.lines(message)[number - 1 : number])[0]

    def log(self) -> list[dict[str, Any]]:
        """Every log line so far."""
        return self._launched.log_lines()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; the exit status."""
        return self._launched.stop_with_signal(number)[0]
