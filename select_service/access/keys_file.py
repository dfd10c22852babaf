"""Reads the file of keys, in TOML or YAML."""

from pathlib import Path

import msgspec

from select_service.access.api_key import ApiKey
from select_service.access.keys_document import keys_of
from select_service.whole_file import read_whole
from select_service.yaml_document import YAML_FAULTS

BYTES_MAX = 1 << 20
YAML_ENDINGS = (".yaml", ".yml")


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """Raises ValueError with one line that names no file.  Blocks."""
    try:
        text = read_whole(path, BYTES_MAX)
    except OSError as error:
        raise ValueError(error.strerror or type(error).__name__) from None
    return keys_in(path, text)


def keys_in(path: Path, text: bytes) -> tuple[ApiKey, ...]:
    """path: its ending says whether it is YAML.  Raises ValueError."""
    decode = msgspec.yaml.decode if path.suffix in YAML_ENDINGS else msgspec.toml.decode
    try:
        document: object = decode(text)
    except (msgspec.DecodeError, *YAML_FAULTS) as error:
        raise ValueError(" ".join(str(error).split())) from None
    return keys_of(document)
