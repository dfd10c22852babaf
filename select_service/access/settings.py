"""The settings -> who is asked for a key."""

from pathlib import Path

from select_service.access.guard import Guard
from select_service.access.keys_file import read_keys
from select_service.settings.config import Config, ConfigError


def guard_of(config: Config) -> Guard:
    """Raises ConfigError."""
    path = config["api_keys_file"]
    if path is None:
        return Guard()
    try:
        return Guard(read_keys(Path(path)))
    except ValueError as error:
        raise ConfigError(f"--api-keys-file {path}: {error}") from None
