"""Tests that files are written whole, without loss of neighbouring files."""

import os

import pytest

from select_service.files.atomic_file import TEMPORARY_SUFFIX, write_whole


def test_files_of_others_beside_it_stay(tmp_path):
    (tmp_path / "state.tmp").write_text("notes")
    write_whole(tmp_path / "state", b"{}")
    assert (tmp_path / "state.tmp").read_text() == "notes"
    assert (tmp_path / "state").read_bytes() == b"{}"


def test_a_link_in_the_way_is_not_written_through(tmp_path):
    (tmp_path / "notes").write_text("notes")
    (tmp_path / f"state{TEMPORARY_SUFFIX}").symlink_to(tmp_path / "notes")
    write_whole(tmp_path / "state", b"{}", 0o600)
    assert (tmp_path / "notes").read_text() == "notes"
    assert (tmp_path / "state").read_bytes() == b"{}"
    assert not (tmp_path / "state").is_symlink()


def test_a_leftover_of_a_killed_process_is_replaced(tmp_path):
    (tmp_path / f"state{TEMPORARY_SUFFIX}").write_text("half")
    write_whole(tmp_path / "state", b"{}")
    assert [each.name for each in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_only_regular_files_are_replaced(kind, tmp_path):
    path = tmp_path / "state"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/null")
    before = path.lstat()
    with pytest.raises(OSError, match="give a regular file"):
        write_whole(path, b"{}")
    assert [each.name for each in tmp_path.iterdir()] == ["state"]
    assert path.lstat().st_mode == before.st_mode
