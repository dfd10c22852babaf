"""Tests of public key files of replicas, secret keys, and the command that creates both."""

from random import Random

import pytest
import zmq

from indexer.curve_keys import curve_key_error
from indexer.sockets.curve_keypairs import key_pair_of, new_key_pair
from select_service.__main__ import main
from select_service.auth.auth_setup import load_replica_keypair
from select_service.auth.keys_file import read_curve_pair, read_replica_keys
from select_service.auth.replica_keys_schema import ReplicaKey, parse_replica_keys
from select_service.config.settings_loader import ConfigError, parse_config
from select_service.core.replication.router_ids import key_mark_of, new_router_id

KEY, OTHER = (new_key_pair().public.decode() for _ in range(2))
ENTRY = {"name": "a", "public_key": KEY}


def create_replica_key(capsys, *argv):
    """Return status, public key and error output of the command."""
    status = main(["keys", "new-replica", *map(str, argv)])
    said = capsys.readouterr()
    return status, said.out.strip(), said.err


@pytest.mark.parametrize("ending", ["toml", "yaml"])
def test_created_replicas_have_name_and_endpoint(capsys, tmp_path, ending):
    path = tmp_path / f"replicas.{ending}"
    for name in ("a", "b"):
        secret = tmp_path / f"{name}.key"
        where = ("--endpoint", f"tcp://{name}:9092", "--url", f"https://{name}:8092")
        status, public, said = create_replica_key(
            capsys, name, "--secret-file", secret, "--file", path, *where
        )
        assert status == 0
        assert secret.stat().st_mode & 0o777 == 0o600
        assert read_curve_pair(secret).public.decode() == public
        assert secret.read_text().strip() not in said + path.read_text()
        known = read_replica_keys(path).find(f"tcp://{name}:9092", None)
        assert known == ReplicaKey(name, public, f"tcp://{name}:9092", f"https://{name}:8092")
    known = read_replica_keys(path)
    assert known.find("tcp://elsewhere:1", "b").name == "b"
    assert known.find("tcp://elsewhere:1", None) is None
    assert len(known.public_keys) == 2


def test_a_secret_is_never_written_over_and_none_is_left_without_its_entry(capsys, tmp_path):
    secret, path = tmp_path / "a.key", tmp_path / "replicas.toml"
    assert create_replica_key(capsys, "a", "--secret-file", secret, "--file", path)[0] == 0
    before = secret.read_text(), path.read_text()
    assert create_replica_key(capsys, "b", "--secret-file", secret, "--file", path)[0] == 2
    again = tmp_path / "again.key"
    assert create_replica_key(capsys, "a", "--secret-file", again, "--file", path)[0] == 2
    assert (secret.read_text(), path.read_text()) == before
    assert not again.exists()


@pytest.mark.parametrize(
    ("entries", "fault"),
    [
        ([{**ENTRY, "public_key": KEY[:-1]}], "40 characters"),
        ([{**ENTRY, "public_key": "#" * 40}], "Z85"),
        ([{**ENTRY, "public_key": "~" * 40}], "Z85"),
        ([{**ENTRY, "endpoint": "selector-a"}], "missing scheme"),
        ([{**ENTRY, "url": "ftp://a"}], "http"),
        ([{**ENTRY, "secret": "x"}], "secret"),
        ([{"name": "a"}], "public_key"),
        ([ENTRY, {"name": "b", "public_key": KEY}], "the key"),
        ([ENTRY, {"name": "a", "public_key": OTHER}], "the name"),
        (
            [
                {**ENTRY, "endpoint": "tcp://a:1"},
                {"name": "b", "public_key": OTHER, "endpoint": "tcp://a:1"},
            ],
            "the endpoint",
        ),
    ],
)
def test_faults_are_reported_in_one_line(entries, fault):
    with pytest.raises(ValueError, match=fault) as raised:
        parse_replica_keys({"replicas": entries})
    assert "\n" not in str(raised.value)


def test_valid_keys_are_those_that_libzmq_accepts():
    rng = Random(1)
    for _ in range(200):
        text = "".join(rng.choices("0aZ.#$%", k=40))
        with zmq.Context() as context, context.socket(zmq.SUB) as socket:
            try:
                socket.curve_serverkey = text.encode()
                is_taken = True
            except zmq.ZMQError:
                is_taken = False
        assert (curve_key_error(text) is None) == is_taken, text


def test_router_ids_are_new_each_time_and_always_of_the_key():
    key = ReplicaKey("a", KEY)
    ids = {new_router_id(Random(seed), key_mark_of(KEY)) for seed in range(50)}
    assert len(ids) == 50
    assert all(key.owns_router_id(router_id) for router_id in ids)
    assert not any(ReplicaKey("b", OTHER).owns_router_id(router_id) for router_id in ids)


def test_a_secret_is_not_repeated_when_it_is_wrong_or_shown():
    with pytest.raises(ValueError, match="CURVE") as raised:
        key_pair_of("secret")
    assert "secret" not in str(raised.value)
    pair = new_key_pair()
    assert pair.secret.decode() not in repr(pair)


@pytest.mark.parametrize(
    ("secret", "public", "flag"),
    [
        (None, "replicas = []", "--replica-key-file"),
        ("short", "replicas = []", "--replica-key-file"),
        ("é" * 40, "replicas = []", "--replica-key-file"),
        ("0" * 40, "replicas", "--replica-keys-file"),
    ],
)
def test_files_that_are_wrong_stop_a_start(tmp_path, secret, public, flag):
    if secret is not None:
        (tmp_path / "secret").write_text(secret)
    (tmp_path / "public.toml").write_text(public)
    flags = ["--replica-sync-port", "9", "--replica-key-file", str(tmp_path / "secret")]
    with pytest.raises(ConfigError, match=flag):
        load_replica_keypair(
            parse_config([*flags, "--replica-keys-file", str(tmp_path / "public.toml")], {})
        )


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (("--replica-key-file", "a"), "require each other"),
        (("--replica-keys-file", "a"), "require each other"),
        (("--replica-key-file", "a", "--replica-keys-file", "b"), "--replica-sync-port"),
        (
            (
                *("--replica-key-file", "a", "--replica-keys-file", "b"),
                *("--replica-sync-port", "9", "--replica-sync-insecure"),
            ),
            "--replica-sync-insecure",
        ),
    ],
)
def test_settings_that_do_not_go_together_stop_a_start(flags, fault):
    with pytest.raises(ConfigError, match=fault):
        parse_config(flags, {})
