"""Service process of an actor: a child that ends with the actor."""

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
"""Time limit of the first answer, in seconds: enough to compile all kernels once."""
POLL_S = 0.05
PORT_WAIT_S = 3.0
"""Time to wait for a port that a former process may just have left, in seconds."""
PR_SET_PDEATHSIG = 1
CERTIFICATE = "--tls-cert"


def launch_service(flags: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the command `select-service`; its log goes to the log of the actor.

    On Linux the kernel kills the process when the calling thread ends for any reason.
    """
    package = str(Path(select_service.__file__).resolve().parents[1])
    # The actor may have got the package by a runtime environment, which a child does not inherit.
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-m", "select_service", *flags],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        preexec_fn=_die_with_parent() if sys.platform == "linux" else None,
    )


def serves_tls(flags: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether a service with these flags and variables serves https."""
    return is_setting_given(CERTIFICATE, flags, environment)


def is_setting_given(name: str, flags: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether these flags or variables set the setting of this flag."""
    variable = "SELECT_SERVICE_" + name.removeprefix("--").replace("-", "_").upper()
    return name in {flag.partition("=")[0] for flag in flags} or bool(environment.get(variable))


def take_port(preferred: int) -> int:
    """Return `preferred` if the port is, or soon becomes, free; otherwise any free port."""
    until = time.monotonic() + PORT_WAIT_S
    while time.monotonic() < until:
        if (port := _bound_port(preferred)) is not None:
            return port
        time.sleep(POLL_S)
    port = _bound_port(0)
    assert port is not None
    return port


def _bound_port(port: int) -> int | None:
    with socket.socket() as probe:
        # As the service binds: else a port in TIME_WAIT would look taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return None
        return int(probe.getsockname()[1])


def _die_with_parent() -> Callable[[], None]:
    # Loaded before the fork: between fork and exec only the call itself is safe.
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
