"""The real command as a separate process: log, exit status and raw sockets."""

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
    """Answer of the service.

    body: decoded JSON if the content type is JSON, else bytes
    """

    status: int
    headers: dict[str, str]
    body: Any


class Client:
    """Client with one connection that sends data unchanged."""

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
        """Return the next answer. Raises EOFError when the connection ends first."""
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
        """Return all data up to the end of the connection."""
        with contextlib.suppress(EOFError):
            while True:
                self._receive()
        return self._rest

    def ended(self) -> bool:
        """Return whether the service closes the connection with nothing more to read."""
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
    """Return a whole request; `body` goes out as JSON, or unchanged if given as bytes."""
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
    """Return exit status, output and error output of a command that ends by itself."""
    return run_command(own_command(*arguments, module=module), environment)


def run_script(script: str, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """Run some lines of Python and return the same as `run_to_end`."""
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
    """Return the settings error of an ended command: a single line of the error output."""
    mark = "select-service: error: "
    assert "Traceback" not in errors
    (line,) = [line for line in errors.splitlines() if line.startswith(mark)]
    return line.removeprefix(mark)


class Reached:
    """Service on a port of the loopback interface, in a thread or a process."""

    def __init__(self, port: int) -> None:
        self.port = port

    def client(self) -> Client:
        return Client(self.port)

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        with self.client() as client:
            client.send(request(method, path, body, **headers))
            return client.answer()


class Running(Reached):
    """Service on a free port, from the first answer to the end; the log is JSON."""

    def __init__(
        self,
        *arguments: str,
        module: str = "select_service",
        trust: ssl.SSLContext | None = None,
        **environment: str,
    ) -> None:
        """Start the process and wait for the first answer.

        module: module with the command to run; not the service itself if a test changes a constant
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
        """Return the whole log so far."""
        return self._launched.log_lines()

    def lines(self, message: str) -> list[dict[str, Any]]:
        """Return the log lines with this message so far."""
        return [line for line in self._launched.log_lines() if line["message"] == message]

    def line(self, message: str, number: int = 1) -> dict[str, Any]:
        """Wait for the first log line with this message, or a later line by `number`."""
        return eventually(lambda: self.lines(message)[number - 1 : number])[0]

    def log(self) -> list[dict[str, Any]]:
        """Return every log line so far."""
        return self._launched.log_lines()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit status."""
        return self._launched.stop_with_signal(number)[0]
