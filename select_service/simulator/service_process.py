"""Starts the selection service as a process of its own, and ends it.

The kernels are compiled first (`select-service compile`), so that the start itself is short.
"""

import asyncio
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path

from select_service.simulator.client import SelectorClient

START_S_MAX = 120.0
STOP_S_MAX = 5.0
POLL_S = 0.05
LOG_TAIL_BYTES = 2000
LOG_TAIL_LINES = 30
HOST = "127.0.0.1"
COMPILING = "compiling kernels: "
"""How a line of `select-service compile` begins that tells how far it is."""


class ServiceFailed(Exception):
    """The service, or compiling its kernels, ended badly; the text holds the end of its log."""


def checked_port(wanted: int) -> int:
    """`wanted`, or any free port of the loopback interface for 0.

    Raises ServiceFailed when it is in use: what listens there must not be taken for ours.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted))
        except OSError as error:
            raise ServiceFailed(f"port {wanted} of {HOST} cannot be used: {error}") from error
        port: int = probe.getsockname()[1]
        return port


async def compile_kernels(on_line: Callable[[str], None]) -> None:
    """Build the caches of all compiled kernels in a process of its own.  Raises ServiceFailed.

    on_line: gets what the process says while it compiles; nothing when all kernels are there.
    """
    command = (sys.executable, "-m", "select_service", "compile")
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    last: deque[str] = deque(maxlen=LOG_TAIL_LINES)
    try:
        async for line in process.stdout:
            last.append(line.decode(errors="replace").rstrip())
            if last[-1].startswith(COMPILING):
                on_line(last[-1])
        status = await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
    if status != 0:
        raise ServiceFailed("\n".join(["compiling the kernels failed:", *last]))


class ServiceProcess:
    """One running service on the loopback interface.  Its log goes to a file, removed on stop."""

    def __init__(self, port: int, *flags: str) -> None:
        self.base_url = f"http://{HOST}:{port}"
        self._log = tempfile.NamedTemporaryFile(prefix="select-service-", suffix=".log")  # noqa: SIM115
        place = ["--host", HOST, "--port", str(port), "--drain-secs", "0"]
        command = [sys.executable, "-m", "select_service", *place, *flags]
        # Its own session: Ctrl-C in the terminal must reach the demo alone, which then ends it.
        self._process = subprocess.Popen(
            command, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
        )

    async def wait_until_alive(self, client: SelectorClient) -> None:
        """Return when GET /health answers.  Raises ServiceFailed when it ends or takes too long."""
        for _ in range(round(START_S_MAX / POLL_S)):
            if self._process.poll() is not None:
                status = self._process.returncode
                raise ServiceFailed(f"the service ended with status {status}:\n{self.log_tail()}")
            if await client.is_alive():
                return
            await asyncio.sleep(POLL_S)
        raise ServiceFailed(f"the service does not answer:\n{self.log_tail()}")

    def stop(self) -> int:
        """Ask it to end, insist after STOP_S_MAX; returns its exit status."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()
        return self._process.returncode

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def log_tail(self) -> str:
        """The end of what it wrote."""
        content = Path(self._log.name).read_bytes()
        return content[-LOG_TAIL_BYTES:].decode(errors="replace")
