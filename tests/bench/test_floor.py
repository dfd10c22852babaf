"""Tests of the floor server: each complete request gets the given bytes exactly once."""

import shutil
import socket
from collections.abc import Iterator

import pytest

from scripts.bench.http_load import post_request
from scripts.bench.suite import floor_server
from scripts.bench.suite.floor_server import compile_floor, read_answer, run_floor

ANSWER = b'HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n{"a": 1}'
REQUEST = post_request("/select", b'{"block_hashes":[1,2]}')
LONG = post_request("/select", b"x" * 700_000)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    with compile_floor() as program:
        assert program is not None
        with run_floor(program, ANSWER) as (_, running):
            yield running.port


def receive(client: socket.socket, n: int) -> bytes:
    found = b""
    while len(found) < n:
        found += client.recv(n - len(found))
    return found


def test_parts_and_several_requests_are_answered(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 10.0) as client:
        for cut in (1, 30, len(REQUEST) - 1):
            client.sendall(REQUEST[:cut])
            client.settimeout(0.05)
            with pytest.raises(TimeoutError):
                client.recv(1)
            client.settimeout(10.0)
            client.sendall(REQUEST[cut:])
            assert receive(client, len(ANSWER)) == ANSWER
        client.sendall(2 * REQUEST + LONG + REQUEST)
        assert receive(client, 4 * len(ANSWER)) == 4 * ANSWER


def test_an_answer_is_read_with_its_head(port: int) -> None:
    assert read_answer(port, b"{}") == ANSWER


def test_without_a_compiler_a_line_names_the_skipped_part(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(floor_server.shutil, "which", lambda name: None)
    with compile_floor() as program:
        assert program is None
    assert "no C compiler" in capsys.readouterr().err
