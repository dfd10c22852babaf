"""The service as a child of an actor's process, which does not outlive it."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import select_service

START_S_MAX = 300.0
"""Seconds until a service answers at the latest: enough to compile all kernels once."""
POLL_S = 0.05
PORT_WAIT_S = 3.0
"""How long a port is waited for that the process before may only just have left."""
PR_SET_PDEATHSIG = 1
CERTIFICATE = "--tls-cert"


def launch(flags: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """The command `select-service`, with flags and variables; its log goes where the actor's goes.

    On Linux the system ends it when the calling thread ends, however that happens.
    """
    package = str(Path(select_service.__file__).resolve().parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-m", "select_service", *flags],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        preexec_fn=_tied() if sys.platform == "linux" else None,
    )


def serves_tls(flags: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Will a service with these flags and variables answer under https?"""
    return is_given(CERTIFICATE, flags, environment)


def is_given(name: str, flags: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Do these flags or variables give the setting of this flag?"""
    variable = "SELECT_SERVICE_" + name.removeprefix("--").replace("-", "_").upper()
    return name in {flag.partition("=")[0] for flag in flags} or bool(environment.get(variable))


def take_port(preferred: int) -> int:
    """`preferred` if it is, or soon becomes, free; otherwise any other."""
    until = time.monotonic() + PORT_WAIT_S
    while time.monotonic() < until:
        if (port := _bindable(preferred)) is not None:
            return port
        time.sleep(POLL_S)
    port = _bindable(0)
    assert port is not None
    return port


def _bindable(port: int) -> int | None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return None
        return int(probe.getsockname()[1])


def _tied() -> Callable[[], None]:
    # Loaded before the fork: between fork and exec only the call itself is left to do.
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
