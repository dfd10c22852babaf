"""Tests of the contents of a key file, and of the errors about a wrong file."""

import pytest

from select_service.auth.api_key import Quotas
from select_service.auth.keys_file import parse_keys_file, read_api_keys
from select_service.files.atomic_file import file_marks
from select_service.files.yaml_document import BYTES_MAX
from tests.builders.keys import entry, keys_file

HASH = "sha256:" + "0" * 64
GOOD = {"name": "a", "hash": HASH, "roles": ["metrics"]}


def test_both_formats_have_the_same_meaning(tmp_path):
    toml = f"""
[[keys]]
name = "gateway"
hash = "{HASH}"
roles = ["caller", "operator"]
tenants = ["red", "blue"]
quotas = {{ requests_per_s = 10, burst = 20, reservations = 30, workers = 40 }}
"""
    yaml = f"""
keys:
  - name: gateway
    hash: {HASH}
    roles: [caller, operator]
    tenants: [red, blue]
    quotas: {{requests_per_s: 10, burst: 20, reservations: 30, workers: 40}}
"""
    (key,) = parse_keys_file(tmp_path / "keys.toml", toml.encode())
    assert (key,) == parse_keys_file(tmp_path / "keys.yaml", yaml.encode())
    assert key.roles == {"caller", "operator"}
    assert key.tenants == {"red", "blue"}
    assert key.quotas == Quotas(10.0, 20, 30, 40)
    assert key.digest == bytes(32)


def test_all_tenants_are_no_bound(tmp_path):
    (key,) = read_api_keys(keys_file(tmp_path, entry("a", "caller")))
    assert key.tenants is None
    assert key.quotas == Quotas()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "the file is empty: create a key with `select-service keys new NAME"),
        ("keys = 3", "`keys`: expected a list, got 3"),
        ("keys = [", "nvalid"),
        ("keys = []\nkey = 1", "unknown field `key`"),
        (entry("a", "boss"), '`keys[0].roles[0]`: expected "caller" or "metrics" or'),
        (entry("a"), "expected a list of at least 1 items, got 0 items"),
        (entry("a b", "metrics"), "`keys[0].name`: expected a text that matches"),
        (entry("a", "metrics").replace("sha256:", "md5:"), "keys[0].hash"),
        (entry("a", "metrics").replace("roles", "rols"), "unknown field `rols`"),
        (entry("a", "caller").replace("tenants", "#"), "`tenants` is missing for the role caller"),
        (entry("a", "caller", tenants="some"), '`keys[0].tenants`: expected "all"'),
        (entry("a", "caller", tenants=[]), "expected a list of at least 1 items, got 0 items"),
        (entry("a", "caller", "replica", tenants=["t"]), "see the whole service"),
        (entry("a", "metrics") + entry("a", "metrics"), "two keys have the name `a`"),
        (
            entry("a", "metrics") + entry("a", "metrics").replace('name = "a"', 'name = "b"'),
            "two keys have the hash",
        ),
        (entry("a", "metrics", burst=3), "`burst` needs `requests_per_s`"),
        (entry("a", "metrics", requests_per_s=0), "> 0"),
        (entry("a", "metrics", requests=1), "unknown field `requests`"),
    ],
)
def test_faults_are_reported_in_one_line(tmp_path, text, fault):
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r".") as caught:
        read_api_keys(path)
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_or_too_large_file_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="file not found: create a key"):
        read_api_keys(tmp_path / "none.toml")
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (BYTES_MAX + 1))
    with pytest.raises(ValueError, match="larger than"):
        read_api_keys(large)


def test_the_marks_of_a_file_change_with_it(tmp_path):
    path = keys_file(tmp_path, entry("a", "metrics"))
    before = file_marks(path)
    assert file_marks(path) == before
    (tmp_path / "new").write_text(path.read_text())
    (tmp_path / "new").replace(path)
    assert file_marks(path) != before
    path.unlink()
    assert file_marks(path) is None
