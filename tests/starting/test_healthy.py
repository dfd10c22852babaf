"""What the image's HEALTHCHECK runs, as the container would: a process with its variables."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.in_thread import InThread
from tests.process.launched import START_S_MAX, free_port, own_environment
from tests.tls.certificates import authority
from tests.tls.served import TlsService

ROOT = Path(__file__).parents[2]
MODULE = "select_service.starting.healthy"


def healthy(**variables):
    """(exit status, what it says)"""
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
        assert healthy(PORT=service.port)[0] == 1  # it speaks no plain HTTP


def test_a_service_that_asks_for_certificates():
    issued, other = authority().issue(), authority("stranger").issue()
    ca = authority().file
    with TlsService("--tls-client-ca", str(ca), issued=issued) as service:
        known = {"PORT": service.port, **variables_of(issued), "TLS_CLIENT_CA": ca}
        assert healthy(**known) == (0, "status 200")
        assert healthy(**known, **variables_of(issued, "tls_client")) == (0, "status 200")
        assert healthy(**known, **variables_of(other, "tls_client"))[0] == 1


@pytest.mark.parametrize(
    "port_of", [lambda: "", lambda: "words", free_port], ids=["none", "words", "free"]
)
def test_what_does_not_answer_is_not_healthy_and_says_so_in_a_line(port_of):
    status, said = healthy(PORT=port_of())
    assert status == 1
    assert len(said.splitlines()) == 1


def test_the_image_runs_it():
    (command,) = re.findall(
        r"^HEALTHCHECK.*\\\n +CMD (.*)$", (ROOT / "Dockerfile").read_text(), re.M
    )
    assert command == f'["python", "-m", "{MODULE}"]'
