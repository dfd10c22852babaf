"""Tests of the image's HEALTHCHECK, run as in the container.

The check is a process with the container's variables, next to the container's first process.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from select_service.cli.healthcheck import main
from tests.builders.certificates import authority
from tests.builders.in_thread import InThread
from tests.builders.launched_process import START_S_MAX, free_port, own_environment
from tests.builders.tls_service import TlsService

ROOT = Path(__file__).parents[2]
MODULE = "select_service.cli.healthcheck"


def healthy(**variables):
    """Return exit status and output."""
    environment = own_environment({f"SELECT_SERVICE_{k}": str(v) for k, v in variables.items()})
    command = [sys.executable, "-m", MODULE]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=START_S_MAX, check=False
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.strip()


def variables_of(issued, prefix="tls"):
    return {f"{prefix}_cert".upper(): issued.certificate, f"{prefix}_key".upper(): issued.key}


def test_a_service_without_tls():
    with InThread() as service:
        assert healthy(PORT=service.port) == (0, "status 200")


def test_a_service_behind_tls():
    issued = authority().issue()
    with TlsService(issued=issued) as service:
        assert healthy(PORT=service.port, **variables_of(issued)) == (0, "status 200")
        assert healthy(PORT=service.port)[0] == 1  # the service accepts no plain HTTP


def test_a_service_that_requires_certificates():
    issued, other = authority().issue(), authority("stranger").issue()
    ca = authority().file
    with TlsService("--tls-client-ca", str(ca), issued=issued) as service:
        known = {"PORT": service.port, **variables_of(issued), "TLS_CLIENT_CA": ca}
        assert healthy(**known) == (0, "status 200")
        assert healthy(**known, **variables_of(issued, "tls_client")) == (0, "status 200")
        assert healthy(**known, **variables_of(other, "tls_client"))[0] == 1


@pytest.fixture
def container(monkeypatch, tmp_path):
    """Return a function that sets the first command of the container."""
    monkeypatch.setattr("select_service.cli.healthcheck.FIRST_PROCESS", tmp_path / "cmdline")
    for name in os.environ:
        if name.startswith("SELECT_SERVICE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SELECT_SERVICE_PORT", str(free_port()))

    def begins(*words):
        (tmp_path / "cmdline").write_bytes(b"".join(f"{word}\0".encode() for word in words))

    return begins


@pytest.mark.parametrize(
    "begun",
    [
        ("/opt/venv/bin/python", "/opt/venv/bin/select-service"),
        ("/sbin/docker-init", "--", "select-service"),
        ("python", "-m", "select_service"),
    ],
)
def test_flags_win_over_variables(container, begun):
    with InThread() as service:
        container(*begun, "--port", service.port)
        assert main() == 0
        container(*begun, f"--port={service.port}", "--host", "0.0.0.0", "--insecure")
        assert main() == 0
        container(*begun)
        assert main() == 1


def test_tls_by_flags(container):
    issued, ca = authority().issue(), authority().file
    with TlsService("--tls-client-ca", str(ca), issued=issued) as service:
        flags = ["--tls-cert", issued.certificate, "--tls-key", issued.key, "--tls-client-ca", ca]
        container("select-service", "--port", service.port, *flags)
        assert main() == 0
        container("select-service", "--port", service.port)
        assert main() == 1


def test_another_command_has_no_flags_of_the_service(container, capsys):
    for words in ((), ("sh", "-c", "select-service --port 1"), ("select-planner", "--port", "x")):
        container(*words)
        assert main() == 1
        assert "Connection refused" in capsys.readouterr().out


@pytest.mark.parametrize("port_of", [lambda: "words", free_port], ids=["words", "free"])
def test_a_service_without_an_answer_is_unhealthy_in_one_line(port_of):
    status, said = healthy(PORT=port_of())
    assert status == 1
    assert len(said.splitlines()) == 1


def test_the_image_runs_it():
    (command,) = re.findall(
        r"^HEALTHCHECK.*\\\n +CMD (.*)$", (ROOT / "Dockerfile").read_text(), re.M
    )
    assert command == f'["python", "-m", "{MODULE}"]'
