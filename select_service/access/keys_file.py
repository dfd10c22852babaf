"""Reads the files of keys: of those who may call, and of replicas; in TOML or YAML."""

from pathlib import Path

import msgspec

from select_service.access.api_key import ApiKey
from select_service.access.keys_document import MAKE_KEY, keys_of
from select_service.access.replica_keys import MAKE_PAIR, ReplicaKeys, replica_keys_of
from select_service.whole_file import read_whole
from select_service.yaml_document import decoded

BYTES_MAX = 1 << 20
YAML_ENDINGS = (".yaml", ".yml")


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """Raises ValueError with one line that names no file.  Blocks."""
    return keys_in(path, _text(path, MAKE_KEY))


def read_replica_keys(path: Path) -> ReplicaKeys:
    """Raises ValueError with one line that names no file.  Blocks."""
    return replica_keys_in(path, _text(path, MAKE_PAIR))


def replica_keys_in(path: Path, text: bytes) -> ReplicaKeys:
    """path: its ending says whether it is YAML.  Raises ValueError."""
    return replica_keys_of(_document(path, text))


def keys_in(path: Path, text: bytes) -> tuple[ApiKey, ...]:
    """path: its ending says whether it is YAML.  Raises ValueError."""
    return keys_of(_document(path, text))


def _text(path: Path, advice: str) -> bytes:
    """Raises ValueError."""
    try:
        return read_whole(path, BYTES_MAX)
    except FileNotFoundError:
        raise ValueError(f"there is no such file: {advice}") from None
    except OSError as error:
        raise ValueError(error.strerror or type(error).__name__) from None


def _document(path: Path, text: bytes) -> object:
    """Raises ValueError."""
    if path.suffix in YAML_ENDINGS:
        return decoded(text)
    try:
        document: object = msgspec.toml.decode(text)
    except UnicodeDecodeError:
        raise ValueError("it is no text in UTF-8") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"it is no TOML: {' '.join(str(error).split())}") from None
    return document
