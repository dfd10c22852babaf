"""Files that do not answer: pipes that nobody writes to, and file systems that hang."""

import os
from pathlib import Path

import pytest

from indexer.sockets.curve import new_pair
from select_service.settings.config import ConfigError, parse
from select_service.starting import reached_files
from select_service.starting.wanted import wanted_of
from select_service.starting.written_files import READ, WRITTEN
from tests.hung_mount import hung_mount
from tests.tls.certificates import authority

FOUND = ["--health-checks=on", "--degradation=auto", "--replica-sync-port=1"]


def flags_of(name: str, path: Path, folder: Path) -> list[str]:
    """The setting with all that it asks for, of which nothing blocks."""
    flags = [*FOUND, f"--{_word(name)}={path}"]
    if name.startswith("tls_"):
        flags += _tls_beside(name)
    if name.startswith("replica_key"):
        flags += _replica_keys_beside(name, folder)
    return flags


def _tls_beside(name: str) -> list[str]:
    issued = authority().issue()
    side = "--tls-client" if name in ("tls_client_cert", "tls_client_key") else "--tls"
    pair = {f"{side}-cert": issued.certificate, f"{side}-key": issued.key}
    return [f"{flag}={path}" for flag, path in pair.items() if flag != f"--{_word(name)}"]


def _word(name: str) -> str:
    return name.replace("_", "-")


def _replica_keys_beside(name: str, folder: Path) -> list[str]:
    other = "replica_keys_file" if name == "replica_key_file" else "replica_key_file"
    path = folder / other
    path.write_bytes(new_pair().secret if other == "replica_key_file" else b"replicas = []")
    return [f"--{_word(other)}={path}"]


@pytest.mark.parametrize("name", [*READ, *WRITTEN])
def test_a_pipe_that_nobody_writes_to_stops_the_start(name, tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="it is a pipe, give a regular file"):
        wanted_of(parse(flags_of(name, path, tmp_path), {}), "1")


def test_a_pipe_among_the_files_of_discovery_stops_the_start(tmp_path):
    os.mkfifo(tmp_path / "workers.yaml")
    config = tmp_path / "discovery.yaml"
    config.write_text(f"sources: [{{name: a, file: {tmp_path}/workers.yaml}}]")
    with pytest.raises(ConfigError, match="it is a pipe"):
        wanted_of(parse([f"--discovery-config={config}"], {}), "1")


@pytest.mark.parametrize("name", ["api_keys_file", "state_path", "audit_log"])
def test_a_file_system_that_hangs_stops_the_start(name, tmp_path, monkeypatch):
    monkeypatch.setattr(reached_files, "ANSWER_S", 0.3)
    flag = f"--{_word(name)}"
    (tmp_path / "mount").mkdir()
    with (
        hung_mount(tmp_path / "mount"),
        pytest.raises(ConfigError, match=rf"^{flag}: `.*/file` does not answer within 0.3 s"),
    ):
        wanted_of(parse([flag, str(tmp_path / "mount" / "file")], {}), "1")


def test_a_link_to_a_regular_file_is_followed_as_kubernetes_makes_them(tmp_path):
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "workers.yaml").write_text("[]")
    (tmp_path / "workers.yaml").symlink_to("..data/workers.yaml")
    wanted_of(parse(["--workers-file", str(tmp_path / "workers.yaml")], {}), "1")
