"""The snapshot file on its own: where it can be kept, and what becomes of files nobody can read."""

import os
from pathlib import Path

import pytest

from indexer import compact_dump
from indexer.compact_load import LoadLimits
from select_service.edge.reading import Reading
from select_service.edge.snapshot_file import REFUSED_FILES_MAX, path_error, read_snapshot

LIMITS = LoadLimits(1000)


def read(path):
    return read_snapshot(path, LIMITS, Reading(str(path)))


def test_refused_files_are_numbered_and_never_overwrite_each_other(tmp_path):
    path = tmp_path / "index"
    for content in ("a", "b", "c"):
        path.write_text(content)
        assert read(path) == []
    kept = {each.name: each.read_text() for each in tmp_path.iterdir()}
    assert kept == {"index.refused": "a", "index.refused.2": "b", "index.refused.3": "c"}


def test_of_too_many_refused_files_the_oldest_makes_room(tmp_path):
    path = tmp_path / "index"
    for number in range(REFUSED_FILES_MAX + 1):
        path.write_text(str(number))
        os.utime(path, (1000 - number, 1000 - number if number != 3 else 1))
        read(path)
    contents = sorted(int(each.read_text()) for each in tmp_path.iterdir())
    assert contents == [0, 1, 2, *range(4, REFUSED_FILES_MAX + 1)]


def test_a_file_of_a_newer_version_is_kept_aside_and_told(tmp_path, caplog):
    path = tmp_path / "index"
    path.write_bytes(compact_dump._frame({"format": compact_dump.FORMAT, "version": 2}))
    assert read(path) == []
    fields = caplog.records[-1].fields
    assert fields["error"] == "version 2, this service reads 1"
    assert fields["kept_as"] == str(tmp_path / "index.refused")


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
