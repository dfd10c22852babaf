"""Tests of a service process with keys, which follows its key file."""

import os
import signal

import pytest

from tests.builders.hung_mount import hung_mount
from tests.builders.keys import bearer, entry, keys_file
from tests.builders.polling import eventually
from tests.builders.running import Running, complaint, run_to_end

pytestmark = pytest.mark.process


def status_of(service, name):
    return service.call("GET", "/config", authorization=bearer(name)).status


def test_keys_come_and_go_while_the_service_runs(tmp_path):
    path = keys_file(tmp_path, entry("first", "operator"))
    with Running("--api-keys-file", str(path)) as service:
        assert service.call("GET", "/health").status == 200
        assert service.call("GET", "/config").status == 401
        assert status_of(service, "first") == 200
        keys_file(tmp_path, entry("second", "operator"))
        service.process.send_signal(signal.SIGHUP)
        eventually(lambda: status_of(service, "second") == 200)
        assert status_of(service, "first") == 401
        path.write_text("keys = [")
        service.line("API key file is invalid; keeping the previous keys")
        assert status_of(service, "second") == 200
        assert service.stop() == 0


def test_a_hanging_file_shows_its_age_and_does_not_delay_the_end(tmp_path):
    """Check the age of the last reading, the only sign that revocations are not applied."""
    folder = tmp_path / "keys"
    folder.mkdir()
    path = keys_file(folder, entry("ops", "operator"))
    with Running("--api-keys-file", str(path)) as service:

        def age():
            answer = service.call("GET", "/metrics", authorization=bearer("ops"))
            name = 'select_service_followed_file_age_seconds{file="api_keys_file"} '
            (line,) = [each for each in answer.body.decode().splitlines() if each.startswith(name)]
            return float(line.removeprefix(name))

        eventually(lambda: age() < 2.0)
        with hung_mount(folder):
            eventually(lambda: age() > 3.0)
            assert status_of(service, "ops") == 200
            assert service.stop(signal.SIGTERM) == 0


def test_a_pipe_as_the_key_file_is_reported_without_waiting(tmp_path):
    path = keys_file(tmp_path, entry("ops", "operator"))
    with Running("--api-keys-file", str(path)) as service:
        path.unlink()
        os.mkfifo(path)
        line = service.line("API key file is invalid; keeping the previous keys")
        assert line["error"] == "not a regular file but a pipe, give a regular file"
        assert status_of(service, "ops") == 200
        path.unlink()
        keys_file(tmp_path, entry("other", "operator"))
        eventually(lambda: status_of(service, "ops") == 401)
        assert service.stop(signal.SIGTERM) == 0


def test_a_start_with_a_wrong_file_reports_the_fault(tmp_path):
    path = keys_file(tmp_path, entry("a", "caller", tenants=[]))
    status, _, errors = run_to_end("--api-keys-file", str(path))
    assert status == 2
    assert complaint(errors).startswith(f"--api-keys-file {path}: ")


def test_a_start_with_a_key_for_peers_that_cannot_be_read_ends_with_one_line(tmp_path):
    path = tmp_path / "peer.key"
    status, _, errors = run_to_end("--peer-api-key-file", str(path))
    assert status == 2
    assert (
        complaint(errors)
        == f"--peer-api-key-file: `{path}` cannot be read: No such file or directory"
    )
    path.write_text("two words")
    status, _, errors = run_to_end("--peer-api-key-file", str(path))
    assert status == 2
    assert complaint(errors).endswith("does not contain a key: expected a single word")


def test_a_public_address_needs_keys_or_an_explicit_flag():
    status, _, errors = run_to_end("--host", "0.0.0.0")
    assert status == 2
    assert "or --insecure to permit this" in complaint(errors)


def test_an_open_service_warns_at_the_start():
    with Running("--host", "0.0.0.0", "--insecure") as service:
        line = service.line("insecure: no API keys, anyone reaching the port has full access")
        assert line["level"] == "WARNING"
        assert service.call("GET", "/ready").body["insecure"] is True
