"""Construction of the guard and of key pairs from the settings."""

from pathlib import Path
from typing import TYPE_CHECKING

from select_service.auth.guard import Guard
from select_service.auth.keys_file import read_api_keys, read_curve_pair, read_replica_keys
from select_service.auth.limit_shares import ShareRules
from select_service.auth.replica_keypair import ReplicaKeypair
from select_service.config.settings_loader import Config, ConfigError
from select_service.net.token_file import read_api_key

if TYPE_CHECKING:
    from indexer.sockets.curve_keypairs import CurveKeyPair


def make_guard(config: Config) -> Guard:
    """Return the guard.  Raises ConfigError."""
    path = config["api_keys_file"]
    if path is None:
        return Guard()
    rules = ShareRules(config["key_share"], config["tenant_share"], config["unbound_key_share"])
    try:
        return Guard(read_api_keys(Path(path)), rules)
    except ValueError as error:
        raise ConfigError(f"--api-keys-file {path}: {error}") from None


def load_replica_keypair(config: Config) -> ReplicaKeypair | None:
    """Return the keys for replica synchronization; None means unencrypted.  Raises ConfigError."""
    if config["replica_key_file"] is None:
        return None
    own = _load_pair(config, "replica_key_file")
    path = Path(config["replica_keys_file"])
    try:
        return ReplicaKeypair(own, path, read_replica_keys(path))
    except ValueError as error:
        raise ConfigError(f"--replica-keys-file {path}: {error}") from None


def load_engine_pair(config: Config) -> "CurveKeyPair | None":
    """Return our key pair towards engines; None means no client key.  Raises ConfigError."""
    return (
        None
        if config["engine_curve_key_file"] is None
        else _load_pair(config, "engine_curve_key_file")
    )


def check_peer_key_file(config: Config) -> None:
    """Check the key file for peers at the start, although the key is read again for each request.

    Raises ConfigError.
    """
    path = config["peer_api_key_file"]
    try:
        if path is not None:
            read_api_key(Path(path))
    except ValueError as error:
        raise ConfigError(f"--peer-api-key-file: {error}") from None


def _load_pair(config: Config, name: str) -> "CurveKeyPair":
    """Return the key pair in the file of the setting.  Raises ConfigError."""
    try:
        return read_curve_pair(Path(config[name]))
    except ValueError as error:
        flag = "--" + name.replace("_", "-")
        raise ConfigError(f"{flag} {config[name]}: {error}") from None
