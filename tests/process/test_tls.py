"""Tests of a service process behind TLS: start, certificate files and end."""

import signal

import pytest

from indexer.sockets.curve_keypairs import new_key_pair
from tests.builders import worker_body
from tests.builders.certificates import Issued, authority
from tests.builders.polling import PATIENCE_S, eventually
from tests.builders.running import complaint, request, run_to_end
from tests.builders.tls_service import replace_pair
from tests.builders.waiting_clients import PROMPT
from tests.process.tls_running import TlsRunning

pytestmark = pytest.mark.process


def test_sighup_reads_a_new_certificate_and_sigterm_ends_connections(tmp_path):
    place = Issued(tmp_path / "cert.pem", tmp_path / "key.pem")
    replace_pair(authority().issue(), place)
    with TlsRunning(place, "--drain-secs", str(PATIENCE_S)) as service:
        assert service.call("POST", "/workers", worker_body(1)).status == 201
        with service.client() as idle, service.client() as busy:
            old = idle.server_certificate
            busy.send(request("POST", "/select", PROMPT))
            assert busy.answer().status == 200
            replace_pair(authority().issue(), place)
            service.process.send_signal(signal.SIGHUP)
            service.line("TLS files reloaded")
            with service.client() as new:
                assert new.server_certificate != old
            service.process.send_signal(signal.SIGTERM)
            eventually(lambda: service.call("GET", "/ready").status == 503)
            busy.send(request("POST", "/select", PROMPT))
            answer = busy.answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert busy.ended()
            busy.socket.close()  # as a client does after connection: close
            assert service.stop() == 0
            assert idle.ended()
        assert [line for line in service.all_lines() if line["level"] == "ERROR"] == []


def test_world_readable_secrets_are_reported(tmp_path):
    """Check group-readable files, which are allowed: Kubernetes gives secret files to a group."""
    place = Issued(tmp_path / "cert.pem", tmp_path / "key.pem")
    replace_pair(authority().issue(), place)
    peer, engine = tmp_path / "peer.key", tmp_path / "engine.key"
    peer.write_text("ssk_secret")
    engine.write_bytes(new_key_pair().secret)
    for path, mode in ((place.key, 0o644), (peer, 0o604), (engine, 0o640)):
        path.chmod(mode)
    flags = ("--peer-api-key-file", str(peer), "--engine-curve-key-file", str(engine))
    with TlsRunning(place, *flags) as service:
        assert service.call("GET", "/health").status == 200
        told = service.lines("secret key readable by all users of this machine")
        assert {line["setting"]: line["path"] for line in told} == {
            "--tls-key": str(place.key),
            "--peer-api-key-file": str(peer),
        }


def test_a_start_with_wrong_files_reports_the_fault(tmp_path):
    one, other = authority().issue(), authority().issue()
    missing = str(tmp_path / "missing")
    for flags, text in {
        ("--tls-cert", missing, "--tls-key", str(one.key)): "cannot be read: No such file",
        (
            "--tls-cert",
            str(one.certificate),
            "--tls-key",
            str(other.key),
        ): "does not match the certificate",
        ("--tls-ca", missing): "--tls-ca, --tls-client-cert, --tls-client-key: `",
        ("--tls-cert", missing): "--tls-cert requires --tls-key",
    }.items():
        status, _, errors = run_to_end(*flags)
        assert status == 2
        assert text in complaint(errors)
