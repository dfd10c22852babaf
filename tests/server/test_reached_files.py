"""Tests of files that do not answer: pipes without a writer, and hung file systems."""

import os
from pathlib import Path

import pytest

from indexer.sockets.curve_keypairs import new_key_pair
from select_service.config.settings_loader import ConfigError, parse_config
from select_service.server import file_system_check
from select_service.server.output_files import OUTPUT_FILES, READ_ONLY_SETTINGS
from select_service.server.startup_settings import validate_settings
from tests.builders.certificates import authority
from tests.builders.hung_mount import hung_mount

FOUND = ["--health-checks=on", "--degradation=auto", "--replica-sync-port=1"]


def flags_of(name: str, path: Path, folder: Path) -> list[str]:
    """Return the flag and all flags that it requires, so that only this file can block."""
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
    path.write_bytes(new_key_pair().secret if other == "replica_key_file" else b"replicas = []")
    return [f"--{_word(other)}={path}"]


@pytest.mark.parametrize("name", [*READ_ONLY_SETTINGS, *OUTPUT_FILES])
def test_a_pipe_without_a_writer_stops_the_start(name, tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="not a regular file but a pipe, give a regular file"):
        validate_settings(parse_config(flags_of(name, path, tmp_path), {}), "1")


def test_a_pipe_among_the_files_of_discovery_stops_the_start(tmp_path):
    os.mkfifo(tmp_path / "workers.yaml")
    config = tmp_path / "discovery.yaml"
    config.write_text(f"sources: [{{name: a, file: {tmp_path}/workers.yaml}}]")
    with pytest.raises(ConfigError, match="not a regular file but a pipe"):
        validate_settings(parse_config([f"--discovery-config={config}"], {}), "1")


@pytest.mark.parametrize("name", ["api_keys_file", "state_path", "audit_log"])
def test_a_file_system_that_hangs_stops_the_start(name, tmp_path, monkeypatch):
    monkeypatch.setattr(file_system_check, "ANSWER_S", 0.3)
    flag = f"--{_word(name)}"
    (tmp_path / "mount").mkdir()
    with (
        hung_mount(tmp_path / "mount"),
        pytest.raises(ConfigError, match=rf"^{flag}: `.*/file`: no response within 0.3 s"),
    ):
        validate_settings(parse_config([flag, str(tmp_path / "mount" / "file")], {}), "1")


def test_a_link_to_a_regular_file_is_followed_as_kubernetes_makes_them(tmp_path):
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "workers.yaml").write_text("[]")
    (tmp_path / "workers.yaml").symlink_to("..data/workers.yaml")
    validate_settings(parse_config(["--workers-file", str(tmp_path / "workers.yaml")], {}), "1")
