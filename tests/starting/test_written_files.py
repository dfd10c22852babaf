"""Files that a service writes: whether they can be, found before anything is built."""

import os
from pathlib import Path

import pytest

from select_service.settings.config import ConfigError, Unusable, parse
from select_service.starting import written_files
from select_service.starting.wanted import wanted_of
from select_service.starting.written_files import claimed, claims, path_error

FLAGS = ["--snapshot-path", "--state-path", "--audit-log", "--decision-log"]


@pytest.mark.parametrize("flag", FLAGS)
def test_a_file_that_cannot_be_written_is_a_wrong_setting(flag, tmp_path):
    for path in (tmp_path / "none" / "file", tmp_path):
        with pytest.raises(ConfigError, match=f"^{flag}: .*`{tmp_path}"):
            wanted_of(parse([flag, str(path)], {}), "1")


def test_logs_are_gone_on_with(tmp_path):
    flags = []
    for flag in FLAGS[2:]:
        path = tmp_path / flag
        path.write_text("a line\n")
        flags += [flag, str(path)]
    wanted_of(parse(flags, {}), "1")
    assert {path.read_text() for path in tmp_path.iterdir()} == {"a line\n"}


def test_the_check_of_a_path_leaves_nothing_behind(tmp_path):
    assert path_error(tmp_path / "index") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    tmp_path.chmod(0o500)
    try:
        assert "cannot write in" in (path_error(tmp_path / "index") or "")
    finally:
        tmp_path.chmod(0o700)


def test_a_device_is_no_place_for_a_snapshot():
    assert path_error(Path("/dev/null")) == "`/dev/null` is no file"


def test_a_second_process_on_one_file_is_refused(tmp_path):
    config = parse(["--state-path", str(tmp_path / "state")], {})
    (first,) = claims(config)
    with pytest.raises(Unusable, match=r"^--state-path: `.*/state` is kept by another process"):
        claims(config)
    claimed("--state-path", tmp_path / "other").close()
    first.close()
    (again,) = claims(config)
    again.close()


def test_where_there_are_no_locks_nobody_is_refused(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(written_files.fcntl, "flock", no_locks)
    claimed("--state-path", tmp_path / "index").close()
