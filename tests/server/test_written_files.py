"""Tests of files that a service writes: a start checks these before building anything."""

import fcntl
import os

import pytest

from indexer.dumps.compact_writer import FORMAT, compact_chunks
from select_service.config.settings_loader import ConfigError, UnusableSetting, parse_config
from select_service.config.settings_table import SETTINGS
from select_service.files.file_claims import claim_file
from select_service.files.persisted_formats import is_snapshot
from select_service.server import output_files
from select_service.server.output_files import (
    OUTPUT_FILES,
    PERSISTED_FILES,
    READ_ONLY_SETTINGS,
    claim_output_files,
    persisted_path_error,
)
from select_service.server.startup_settings import validate_settings

FLAGS = ["--snapshot-path", "--state-path", "--health-state", "--audit-log", "--decision-log"]
LOGS = FLAGS[3:]
HEALTH_ON = ["--health-checks", "on"]


def judge(*flags):
    return validate_settings(parse_config([*HEALTH_ON, *map(str, flags)], {}), "1")


def test_every_file_setting_is_read_only_or_an_output():
    named = {each.name for each in SETTINGS if "file " in f"{each.help} " and each.default is None}
    assert named == {*READ_ONLY_SETTINGS, *OUTPUT_FILES}


@pytest.mark.parametrize("flag", FLAGS)
def test_a_file_that_cannot_be_written_is_a_wrong_setting(flag, tmp_path):
    for path in (tmp_path / "none" / "file", tmp_path):
        with pytest.raises(ConfigError, match=f"^{flag}: .*`{tmp_path}"):
            judge(flag, path)


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("kind", ["pipe", "device", "text"])
def test_a_foreign_file_stops_the_start_and_stays(flag, kind, tmp_path):
    path = tmp_path / "notes.txt"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/null")
    else:
        path.write_text("shopping list")
    before = path.lstat()
    with pytest.raises(ConfigError, match=f"^{flag}: .*`{path}`"):
        judge(flag, path)
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]
    assert path.lstat()[:7] == before[:7]  # all but the times
    assert kind != "text" or path.read_text() == "shopping list"


def test_logs_are_gone_on_with(tmp_path):
    flags = []
    for flag in LOGS:
        path = tmp_path / flag
        path.write_text("{}\n")
        flags += [flag, str(path)]
    judge(*flags)
    assert {path.read_text() for path in tmp_path.iterdir()} == {"{}\n"}


def test_the_check_of_a_path_leaves_nothing_behind(tmp_path):
    assert persisted_path_error(tmp_path / "index", PERSISTED_FILES["snapshot_path"]) is None
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_is_written_over(tmp_path):
    (tmp_path / "state").touch()
    judge("--state-path", tmp_path / "state")


def test_a_snapshot_is_recognized_by_its_format(tmp_path):
    path = tmp_path / "index"
    path.write_bytes(b"".join(compact_chunks([])))
    assert FORMAT.encode() in path.read_bytes()
    assert is_snapshot(path)
    judge("--snapshot-path", path)


def test_foreign_policies_beside_a_snapshot_stop_the_start(tmp_path):
    (tmp_path / "index.policies").write_text("shopping list")
    with pytest.raises(ConfigError, match=r"--snapshot-path: `.*index.policies` is not a file of"):
        judge("--snapshot-path", tmp_path / "index")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    tmp_path.chmod(0o500)
    try:
        error = persisted_path_error(tmp_path / "index", PERSISTED_FILES["snapshot_path"])
        assert "cannot write in" in (error or "")
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("one", FLAGS)
@pytest.mark.parametrize("other", [*FLAGS, "--workers-file", "--tls-ca"])
@pytest.mark.parametrize("how", ["same", "dots", "symbolic", "hard"])
def test_two_flags_on_one_file_are_refused(one, other, how, tmp_path):
    if one == other:
        return
    path = alias = tmp_path / "file"
    if how == "dots":
        alias = tmp_path / ".." / tmp_path.name / "file"
    elif how != "same":
        path.touch()
        alias = tmp_path / "alias"
        (alias.symlink_to if how == "symbolic" else alias.hardlink_to)(path)
    config = parse_config([*HEALTH_ON, one, str(path), other, str(alias)], {})
    with pytest.raises(ConfigError, match=rf"(?=.*{one})(?=.*{other}).* both use `.*`"):
        output_files.check_written_files(config)


@pytest.mark.parametrize("ending", [".lock", ".select-service-tmp", ".policies", ".refused.3"])
def test_companion_files_belong_to_one_setting(ending, tmp_path):
    path = str(tmp_path / "index")
    with pytest.raises(ConfigError, match=rf"both use `{path}\{ending}`"):
        judge("--snapshot-path", path, "--state-path", path + ending)


def test_one_file_may_be_read_for_two_settings(tmp_path):
    config = parse_config(
        ["--tls-cert", str(tmp_path / "pem"), "--tls-key", str(tmp_path / "pem")], {}
    )
    output_files.check_written_files(config)


@pytest.mark.parametrize("flag", FLAGS)
def test_a_second_process_on_one_file_is_refused(flag, tmp_path):
    config = parse_config([*HEALTH_ON, flag, str(tmp_path / "file")], {})
    (first,) = claim_output_files(config)
    with pytest.raises(UnusableSetting, match=rf"^{flag}: `.*/file` is in use by another process"):
        claim_output_files(config)
    claim_file(tmp_path / "other").close()
    first.close()
    (again,) = claim_output_files(config)
    again.close()


def test_without_file_locks_no_process_is_refused(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    claim_file(tmp_path / "index").close()


def test_files_are_for_their_user_alone_unless_another_mode_is_given(tmp_path):
    before = os.umask(0o077)
    try:
        for mode, flags in ((0o600, []), (0o640, ["--file-mode", "0640"])):
            path = tmp_path / f"{mode:o}"
            judge("--audit-log", path, *flags)
            assert path.stat().st_mode & 0o777 == mode
    finally:
        os.umask(before)


@pytest.mark.parametrize("mode", ["0400", "0777", "0200", "rw", "600x", "4600", "-600", "0"])
def test_a_mode_with_which_nothing_would_work_is_refused(mode):
    with pytest.raises(ConfigError, match=r"^--file-mode: expected an octal mode"):
        parse_config(["--file-mode", mode], {})
