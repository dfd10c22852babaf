"""A YAML document that an operator wrote: bounded, and read with one line for every fault."""

from pathlib import Path

import msgspec

BYTES_MAX = 1 << 20
YAML_FAULTS = (ValueError, LookupError, AttributeError, RecursionError)
"""What the YAML reader lets out for dates, numbers and tagged scalars that it cannot make."""


def read_document(path: str, bytes_max: int = BYTES_MAX) -> object:
    """Raises ValueError with one line that names no file."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(bytes_max + 1)
    except OSError as error:
        raise ValueError(error.strerror or type(error).__name__) from None
    if len(text) > bytes_max:
        raise ValueError(f"it is larger than {bytes_max} bytes")
    try:
        document: object = msgspec.yaml.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(" ".join(str(error).split())) from None
    except YAML_FAULTS as error:
        raise ValueError(f"a value cannot be read: {error}") from None
    return document
