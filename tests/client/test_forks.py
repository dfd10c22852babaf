"""Tests of the client for threads in forking processes: gunicorn's workers, multiprocessing."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from tests.builders import worker_body
from tests.builders.in_thread import InThread
from tests.builders.launched_process import ROOT
from tests.builders.polling import PATIENCE_S

pytestmark = pytest.mark.process

BEGIN = """
import multiprocessing, os, sys, time
from select_service.client import Refused, Selector
url, transport = sys.argv[1:]
IDS = list(range(10))

def forked(act):
    \"\"\"Return the exit status of a child that acts and ends as any program does.\"\"\"
    pid = os.fork()
    if pid == 0:
        act()
        sys.exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def lease():
    with selector.lease(token_ids=IDS) as lease:
        assert lease.booked
        assert selector.reservation(lease.reservation_id).worker_id == 1
    wait_until_free(lease)

def wait_until_free(lease):
    try:
        while selector.reservation(lease.reservation_id):
            time.sleep(0.01)
    except Refused as refused:
        assert refused.status == 404

selector = Selector([url], model_name="m", transport=transport)
"""

BEFORE_ITS_FIRST_CALL = """
import threading
assert threading.active_count() == 1, "a fork would take half of a thread along"
assert forked(lease) == forked(lease) == 7
lease()
"""
AFTER_ITS_FIRST_CALL = """
lease()
for _ in range(3):
    assert forked(lease) == 7
    lease()
"""
BY_MULTIPROCESSING = """
def answer(number):
    lease()
    return number

lease()
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(answer, range(6)) == [*range(6)]
lease()
"""
CLOSED_BY_A_CHILD = """
lease()
assert forked(selector.close) == 7
lease()
"""
OF_A_CHILD_OF_A_CHILD = """
def again():
    lease()
    assert forked(lease) == 7
    lease()

lease()
assert forked(again) == 7
lease()
"""
WITH_A_LEASE = """
def use():
    for act in (held.first_token, lambda: held.tokens(1), held.end, lambda: held.failed("x")):
        try:
            act()
        except RuntimeError as error:
            assert "forked" in str(error) and "begin" in str(error), error
        else:
            raise AssertionError("nobody tells the selector of it")
    assert selector.reservation(held.reservation_id).state == "prefill"

with selector.lease(token_ids=IDS) as held:
    assert forked(use) == 7
    assert selector.reservation(held.reservation_id).state == "prefill"
    held.tokens(1)
wait_until_free(held)

pid = None
with selector.lease(token_ids=IDS) as held:
    pid = os.fork()
if pid == 0:
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
"""
END = """
selector.close()
try:
    selector.health()
except RuntimeError as error:
    assert "closed" in str(error), error
else:
    raise AssertionError("it is closed")
print("done")
"""


@pytest.fixture(scope="module")
def service():
    with InThread() as service:
        assert service.call("POST", "/workers", worker_body(1)).status == 201
        yield service


@pytest.mark.parametrize("transport", ["httpx", "aiohttp"])
@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(BEFORE_ITS_FIRST_CALL, id="before its first call"),
        pytest.param(AFTER_ITS_FIRST_CALL, id="after its first call"),
        pytest.param(BY_MULTIPROCESSING, id="by multiprocessing"),
        pytest.param(CLOSED_BY_A_CHILD, id="closed by a child"),
        pytest.param(OF_A_CHILD_OF_A_CHILD, id="of a child of a child"),
        pytest.param(WITH_A_LEASE, id="with a lease"),
    ],
)
def test_parents_and_children_use_one_client(service, scene, transport):
    url = f"http://127.0.0.1:{service.port}"
    command = [
        sys.executable,
        "-W",
        "ignore::DeprecationWarning",
        "-c",
        BEGIN + scene + END,
        url,
        transport,
    ]
    assert ended(command) == ("done\n", "", 0)
    assert service.call("GET", "/reservations").body["reservations"] == []


def ended(command):
    """Return output, error output and status of a program; children end with the program."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True, **pipes) as program:
        try:
            said, complaints = program.communicate(timeout=PATIENCE_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
        return said, complaints, program.returncode
