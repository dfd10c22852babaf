"""Test of a service at its memory limit: small requests and shutdown work."""

import resource
from pathlib import Path

import pytest

from tests.builders import worker_body
from tests.builders.running import Answer, Running
from tests.builders.waiting_clients import PROMPT

pytestmark = pytest.mark.process

LARGE_TOKENS = 60_000
LARGE_MAX = 500
SMALL = 20


def leave_memory(pid: int, left: int) -> None:
    """Let the process map this many bytes beyond the present size, as under `ulimit -v`."""
    status = Path(f"/proc/{pid}/status").read_text()
    (kib,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmSize:")]
    limit = 1024 * int(kib) + left
    resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))


def reserve(service: Running, name: str, tokens: range) -> Answer:
    body = {**PROMPT, "token_ids": list(tokens), "reservation_id": name}
    return service.call("POST", "/select_and_reserve", body)


@pytest.mark.parametrize("path", [(), ("--no-fast-path",)], ids=["fast", "ordinary"])
def test_small_requests_are_answered_after_memory_ran_out_and_it_ends(path):
    with Running("--drain-secs", "0", *path) as service:
        assert service.call("POST", "/workers", worker_body(1)).status == 201
        leave_memory(service.process.pid, 0)
        for number in range(LARGE_MAX):
            begin = number * LARGE_TOKENS
            answer = reserve(service, f"large-{number}", range(begin, begin + LARGE_TOKENS))
            if answer.status != 200:
                assert (answer.status, answer.body["code"]) == (503, "capacity_exceeded")
                break
        else:
            pytest.fail("memory did not run out")
        for number in range(SMALL):
            assert service.call("POST", "/select", PROMPT).status == 200
            assert reserve(service, f"small-{number}", range(number, number + 200)).status == 200
            assert service.call("DELETE", f"/reservations/small-{number}").status == 200
        assert service.call("GET", "/workers").status == 200
        assert service.call("GET", "/metrics").status == 200
        assert service.stop() == 0
