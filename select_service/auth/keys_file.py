"""Reader of the files of keys: API keys and replica keys, in TOML or YAML, and CURVE keys."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from select_service.auth.api_key import ApiKey
from select_service.auth.api_keys_schema import CREATE_KEY_ADVICE, parse_keys
from select_service.auth.replica_keys_schema import (
    CREATE_PAIR_ADVICE,
    ReplicaKeys,
    parse_replica_keys,
)
from select_service.files.atomic_file import read_whole
from select_service.files.yaml_document import decode_yaml

if TYPE_CHECKING:
    from indexer.sockets.curve_keypairs import CurveKeyPair

BYTES_MAX = 1 << 20
CURVE_KEY_BYTES_MAX = 4096
YAML_ENDINGS = (".yaml", ".yml")


def read_api_keys(path: Path) -> tuple[ApiKey, ...]:
    """Return the API keys.

    Raises ValueError with a one-line message without file name.  Blocks.
    """
    return parse_keys_file(path, _read_text(path, CREATE_KEY_ADVICE))


def read_replica_keys(path: Path) -> ReplicaKeys:
    """Return the replica keys.

    Raises ValueError with a one-line message without file name.  Blocks.
    """
    return parse_replica_keys_file(path, _read_text(path, CREATE_PAIR_ADVICE))


def read_curve_pair(path: Path) -> "CurveKeyPair":
    """Return the pair of the secret CURVE key in a file.

    Raises ValueError with a one-line message without file name and secret.  Blocks.
    """
    # errors in other settings must not wait for the import of libzmq
    from indexer.sockets.curve_keypairs import key_pair_of

    try:
        return key_pair_of(read_whole(path, CURVE_KEY_BYTES_MAX).decode("ascii").strip())
    except UnicodeDecodeError:
        raise ValueError("not a CURVE key: expected a single word of 40 characters") from None
    except OSError as error:
        raise ValueError(error.strerror or type(error).__name__) from None


def parse_replica_keys_file(path: Path, text: bytes) -> ReplicaKeys:
    """Return the replica keys.  path: its suffix selects YAML or TOML.  Raises ValueError."""
    return parse_replica_keys(_parse_document(path, text))


def parse_keys_file(path: Path, text: bytes) -> tuple[ApiKey, ...]:
    """Return the API keys.  path: its suffix selects YAML or TOML.  Raises ValueError."""
    return parse_keys(_parse_document(path, text))


def _read_text(path: Path, advice: str) -> bytes:
    """Return the content of the file.  Raises ValueError."""
    try:
        return read_whole(path, BYTES_MAX)
    except FileNotFoundError:
        raise ValueError(f"file not found: {advice}") from None
    except OSError as error:
        raise ValueError(error.strerror or type(error).__name__) from None


def _parse_document(path: Path, text: bytes) -> object:
    """Return the parsed document.  Raises ValueError."""
    if path.suffix in YAML_ENDINGS:
        return decode_yaml(text)
    try:
        document: object = msgspec.toml.decode(text)
    except UnicodeDecodeError:
        raise ValueError("the file is not UTF-8 text") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"the file is not valid TOML: {' '.join(str(error).split())}") from None
    return document
