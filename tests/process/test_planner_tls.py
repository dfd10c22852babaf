"""Test of a planner with a client certificate: the status shows the file's present certificate."""

from pathlib import Path

import pytest

from tests.builders import worker_body
from tests.builders.certificates import Issued, authority, trusting_context
from tests.builders.polling import eventually
from tests.builders.tls_service import TlsService, replace_pair
from tests.process.planner_process import Planner

pytestmark = pytest.mark.process


def test_a_planner_presents_the_certificate_now_in_its_files(tmp_path: Path) -> None:
    own = Issued(tmp_path / "tls.crt", tmp_path / "tls.key")
    replace_pair(authority("stranger").issue(), own)
    with TlsService("--tls-client-ca", str(authority().file)) as selector:
        selector.trust = trusting_context(authority().file, authority().issue())
        for worker_id in (1, 2):
            assert selector.call("POST", "/workers", worker_body(worker_id)).status == 201
        deployment = {
            "name": "fleet",
            "model_name": "m",
            "mode": "agg",
            "throughput_adjustment_interval_seconds": 1,
            "connector": {"kind": "virtual"},
        }
        config = {
            "selectors": [url := f"https://localhost:{selector.port}"],
            "ca_file": str(authority().file),
            "client_cert_file": str(own.certificate),
            "client_key_file": str(own.key),
            "deployments": [deployment],
        }
        with Planner(tmp_path, config) as planner:
            eventually(lambda: url in planner.status()["faults"])
            replace_pair(authority().issue(), own)
            eventually(lambda: url not in planner.ticks_on()["faults"])
            assert planner.status()["replicas"]["decode"]["ready"] == 2
            assert planner.process.stop_with_signal()[0] == 0
