"""Tests of `select-service keys new`."""

import pytest

from select_service.__main__ import main
from select_service.auth.guard import Guard
from select_service.auth.keys_file import read_api_keys
from select_service.auth.roles import ANYONE


def create_key(capsys, *argv):
    """Return status, key and error output of the command."""
    status = main(["keys", "new", *map(str, argv)])
    said = capsys.readouterr()
    return status, said.out.strip(), said.err


@pytest.mark.parametrize("ending", ["toml", "yaml", "yml"])
def test_a_created_key_is_accepted(capsys, tmp_path, ending):
    path = tmp_path / f"keys.{ending}"
    for name in ("first", "second"):
        status, secret, _ = create_key(
            capsys, name, "--role", "caller", "--tenant", "red", "--workers", 3, "--file", path
        )
        assert status == 0
        assert secret not in path.read_text()
        headers = [(b"authorization", b"Bearer " + secret.encode())]
        grant = Guard(read_api_keys(path)).authenticate("/select", ANYONE, headers)
        assert grant.key.name == name
        assert grant.tenants == {"red"}
        assert grant.key.quotas.workers == 3
    assert [key.name for key in read_api_keys(path)] == ["first", "second"]


def test_without_a_file_the_entry_is_shown(capsys, tmp_path):
    status, secret, said = create_key(capsys, "scraper", "--role", "metrics")
    assert status == 0
    path = tmp_path / "keys.toml"
    path.write_text(said)
    (key,) = read_api_keys(path)
    assert key.name == "scraper"
    assert secret.startswith("ssk_")


def test_two_keys_are_never_alike(capsys):
    keys = {create_key(capsys, "a", "--role", "metrics")[1] for _ in range(3)}
    assert len(keys) == 3
    assert all(len(key) == 47 for key in keys)


@pytest.mark.parametrize(
    "argv",
    [
        ("same", "--role", "metrics"),
        ("bad name", "--role", "metrics"),
        ("a", "--role", "replica", "--tenant", "t"),
    ],
)
def test_wrong_arguments_leave_the_file_unchanged(capsys, tmp_path, argv):
    path = tmp_path / "keys.toml"
    assert create_key(capsys, "same", "--role", "metrics", "--file", path)[0] == 0
    before = path.read_text()
    status, secret, said = create_key(capsys, *argv, "--file", path)
    assert (status, secret) == (2, "")
    assert "nothing was written" in said
    assert path.read_text() == before
