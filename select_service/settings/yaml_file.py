"""A YAML file that an operator wrote."""

from pathlib import Path

import msgspec

from select_service.settings.config import ConfigError

BYTES_MAX = 1 << 20
_FAULTS = (ValueError, LookupError, AttributeError, RecursionError)
"""What the YAML reader lets out for dates, numbers and tagged scalars that it cannot make."""


def by_model(what: str, path: str) -> object:
    """What the file says of models: all of it, or what stands under `models`.

    what: it is called so in messages
    Raises ConfigError.
    """
    document = _document(what, path)
    if isinstance(document, dict) and list(document) == ["models"]:
        inner: object = document["models"]
        return inner if isinstance(inner, dict) else document
    return document


def _document(what: str, path: str) -> object:
    try:
        with Path(path).open("rb") as file:
            text = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{what} {path}: {error.strerror}") from None
    if len(text) > BYTES_MAX:
        raise ConfigError(f"{what} {path}: it is larger than {BYTES_MAX} bytes")
    try:
        document: object = msgspec.yaml.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{what} {path}: {' '.join(str(error).split())}") from None
    except _FAULTS as error:
        raise ConfigError(f"{what} {path}: a value cannot be read: {error}") from None
    return document
