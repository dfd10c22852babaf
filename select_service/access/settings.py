"""The settings -> who is asked for a key, and which keys are ours."""

from pathlib import Path
from typing import TYPE_CHECKING

from select_service.access.curve_file import read_pair
from select_service.access.guard import Guard
from select_service.access.keys_file import read_keys, read_replica_keys
from select_service.access.plane_keys import PlaneKeys
from select_service.access.presenting import key_in
from select_service.access.shares import ShareRules
from select_service.settings.config import Config, ConfigError

if TYPE_CHECKING:
    from indexer.sockets.curve import CurvePair


def guard_of(config: Config) -> Guard:
    """Raises ConfigError."""
    path = config["api_keys_file"]
    if path is None:
        return Guard()
    rules = ShareRules(config["key_share"], config["tenant_share"], config["unbound_key_share"])
    try:
        return Guard(read_keys(Path(path)), rules)
    except ValueError as error:
        raise ConfigError(f"--api-keys-file {path}: {error}") from None


def plane_keys_of(config: Config) -> PlaneKeys | None:
    """Of the replica plane; None: it is plain.  Raises ConfigError."""
    if config["replica_key_file"] is None:
        return None
    own = _pair(config, "replica_key_file")
    path = Path(config["replica_keys_file"])
    try:
        return PlaneKeys(own, path, read_replica_keys(path))
    except ValueError as error:
        raise ConfigError(f"--replica-keys-file {path}: {error}") from None


def engine_pair_of(config: Config) -> "CurvePair | None":
    """Under which we listen to engines; None: under none that they know.  Raises ConfigError."""
    return (
        None if config["engine_curve_key_file"] is None else _pair(config, "engine_curve_key_file")
    )


def check_peer_key(config: Config) -> None:
    """The key that peers are shown is read for each request; a wrong file ends the start, though.

    Raises ConfigError.
    """
    path = config["peer_api_key_file"]
    try:
        if path is not None:
            key_in(Path(path))
    except ValueError as error:
        raise ConfigError(f"--peer-api-key-file: {error}") from None


def _pair(config: Config, name: str) -> "CurvePair":
    """Raises ConfigError."""
    try:
        return read_pair(Path(config[name]))
    except ValueError as error:
        flag = "--" + name.replace("_", "-")
        raise ConfigError(f"{flag} {config[name]}: {error}") from None
