"""Service process of the demo.

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

from select_service.sim.demo.service_client import ServiceClient

START_S_MAX = 120.0
STOP_S_MAX = 5.0
POLL_S = 0.05
LOG_TAIL_BYTES = 2000
LOG_TAIL_LINES = 30
HOST = "127.0.0.1"
COMPILING = "compiling kernels: "
"""Prefix of a progress line of `select-service compile`."""


class ServiceProcessFailed(Exception):
    """The service, or the compilation of its kernels, failed; the text ends with the log."""


def choose_port(wanted: int) -> int:
    """Return `wanted`, or a free loopback port for 0.

    Raises ServiceProcessFailed if the port is in use: another listener must not be taken for the
    service.
    """
    with socket.socket() as probe:
        # As the service binds: a port in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted))
        except OSError as error:
            raise ServiceProcessFailed(
                f"port {wanted} of {HOST} cannot be used: {error}; choose another --port"
            ) from error
        port: int = probe.getsockname()[1]
        return port


async def compile_kernels(on_line: Callable[[str], None]) -> None:
    """Compile all kernels in a process of their own.  Raises ServiceProcessFailed.

    on_line: receives the progress lines; not called if all kernels are cached
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
        raise ServiceProcessFailed("\n".join(["kernel compilation failed:", *last]))


class ServiceProcess:
    """A running service on the loopback interface. Its log is a file, removed by `stop`."""

    def __init__(self, port: int, *flags: str) -> None:
        self.base_url = f"http://{HOST}:{port}"
        self._log = tempfile.NamedTemporaryFile(prefix="select-service-", suffix=".log")  # noqa: SIM115
        place = ["--host", HOST, "--port", str(port), "--drain-secs", "0"]
        command = [sys.executable, "-m", "select_service", *place, *flags]
        # Its own session: Ctrl-C in the terminal must reach the demo alone, which then ends the
        # service.
        self._process = subprocess.Popen(
            command, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
        )

    async def wait_until_alive(self, client: ServiceClient) -> None:
        """Wait until GET /health answers.  Raises ServiceProcessFailed after an "
        "end or a timeout."""
        for _ in range(round(START_S_MAX / POLL_S)):
            if self._process.poll() is not None:
                status = self._process.returncode
                raise ServiceProcessFailed(
                    f"the service ended with status {status}:\n{self.log_tail()}"
                )
            if await client.is_alive():
                return
            await asyncio.sleep(POLL_S)
        raise ServiceProcessFailed(
            f"the service did not answer within {START_S_MAX:.0f} s:\n{self.log_tail()}"
        )

    def stop(self) -> int:
        """Terminate the process, kill it after STOP_S_MAX, and return its exit status."""
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
        """Return the end of the log."""
        content = Path(self._log.name).read_bytes()
        return content[-LOG_TAIL_BYTES:].decode(errors="replace")
