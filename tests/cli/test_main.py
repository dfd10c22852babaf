"""Tests of the command before a service exists: checked settings, and the end."""

import json
import signal
import subprocess
import sys
import threading

import pytest

from select_service.server import early_signals
from select_service.server.early_signals import add_exit_callback, exit_immediately_on_signal
from tests.builders.polling import PATIENCE_S

HEAVY = ("numba", "numpy", "zmq", "aiohttp", "uvicorn", "prometheus_client")
IMPORTED = """\
import sys
from select_service.__main__ import main
try:
    status = main({argv!r})
except SystemExit as end:
    status = end.code
print([name for name in {heavy!r} if name in sys.modules], status)
"""
STUCK = """\
import os, signal, time
from select_service.server.early_signals import add_exit_callback, exit_immediately_on_signal
add_exit_callback(lambda: print("ended", flush=True))
with exit_immediately_on_signal(0):
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    print("ready", flush=True)
    {busy}
"""


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["--port", "x"], 2),
        (["--policy-config", "/no/such/file"], 2),
        (["--priority-default-tier", "unknown"], 2),
        (["--replica-sync-peers", "tcp://a:1"], 2),
        (["--replica-sync-port", "9", "--replica-sync-peers", "nonsense"], 2),
        (["--indexer-peers", "ftp://a"], 2),
        (["--snapshot-path", "/no/such/directory/file"], 2),
        (["--state-path", "/no/such/directory/file"], 2),
        (["--audit-log", "/no/such/directory/file"], 2),
        (["--decision-log", "/no/such/directory/file"], 2),
        (["--host", "256.0.0.1", "--insecure"], 2),
    ],
)
def test_every_verdict_comes_before_anything_heavy_is_imported(argv, status):
    assert run(IMPORTED.format(argv=argv, heavy=HEAVY)) == f"[] {status}"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    "busy",
    [
        "time.sleep(1000)",
        # A compiler's callback of foreign code, in which exceptions are lost.
        "import ctypes; call = ctypes.CFUNCTYPE(None)(lambda: time.sleep(0.001))\n"
        "    while True: call()",
        # Foreign code that never returns.
        "import ctypes; sleep = ctypes.CDLL(None).sleep\n    while True: sleep(1000)",
    ],
)
def test_a_signal_ends_the_process_whatever_the_main_thread_does(busy, number):
    command = [sys.executable, "-c", STUCK.format(busy=busy)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(number)
            assert process.stdout.read() == "ended\n"
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


def test_afterwards_a_signal_raises_and_nothing_stays(monkeypatch):
    kept = {number: signal.getsignal(number) for number in early_signals.SIGNALS}
    try:
        with exit_immediately_on_signal(0):
            add_exit_callback(lambda: None)
        with pytest.raises(SystemExit) as end:
            signal.raise_signal(signal.SIGTERM)
        assert end.value.code == 0
        assert signal.set_wakeup_fd(-1) == -1
        for thread in threading.enumerate():
            if thread.name == "early-signals":
                thread.join(PATIENCE_S)
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def test_the_verdict_is_one_line():
    script = IMPORTED.format(argv=["--port", "x"], heavy=HEAVY)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == (
        "select-service: error: --port: expected a whole number from 0 to 65535, got `x`\n"
    )
    assert json.loads(done.stdout.split()[0]) == []
