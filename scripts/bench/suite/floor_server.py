"""Floor of a request: a C server that only receives it and sends a fixed answer (floor_server.c).

Linux takes almost all of its CPU per request, which no service can save.
"""

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scripts.bench.http_load import post_request
from scripts.bench.services_under_test import RunningService, ServiceUnderTest
from scripts.bench.suite.benchmark_report import FLOOR

SOURCE = Path(__file__).with_name("floor_server.c")
ANSWER_BYTES_MAX = 65_536


@contextlib.contextmanager
def compile_floor() -> Iterator[Path | None]:
    """Yield the compiled program; None, after a printed line, without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        print("no C compiler (cc): rows beside the floor server are skipped", file=sys.stderr)
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "floor_server"
        subprocess.run((compiler, "-O2", "-Wall", "-o", program, SOURCE), check=True)
        yield program


@contextlib.contextmanager
def run_floor(program: Path, answer: bytes) -> Iterator[tuple[ServiceUnderTest, RunningService]]:
    """Yield the server, on the server's CPU.  answer: bytes of every response"""
    with tempfile.NamedTemporaryFile() as file:
        file.write(answer)
        file.flush()
        contender = ServiceUnderTest(FLOOR, (str(program), "--answer", file.name), None)
        with RunningService(contender) as running:
            running.wait_until_healthy()
            yield contender, running


def read_answer(port: int, body: bytes) -> bytes:
    """Return the bytes of the answer to POST /select on a new connection."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(post_request("/select", body))
        # An answer to a short prompt is one segment.
        answer = client.recv(ANSWER_BYTES_MAX)
    head, _, content = answer.partition(b"\r\n\r\n")
    length = next(
        line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    )
    assert len(content) == int(length.partition(b":")[2]), answer
    return answer
