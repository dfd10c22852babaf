"""A YAML document that an operator wrote: bounded, and read with one line for every fault."""

from pathlib import Path

import msgspec
import yaml

BYTES_MAX = 1 << 20
NESTING_MAX = 64
"""Far deeper the reader, which calls itself for every level, would end the process."""
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
    return decoded(text)


def decoded(text: bytes) -> object:
    """Raises ValueError with one line."""
    try:
        _refuse_deep(text)
        document: object = msgspec.yaml.decode(text)
    except (msgspec.DecodeError, yaml.YAMLError) as error:
        raise ValueError(" ".join(str(error).split())) from None
    except YAML_FAULTS as error:
        raise ValueError(f"a value cannot be read: {error}") from None
    return document


def _refuse_deep(text: bytes) -> None:
    """By the events of a first reading, which need no stack.  Raises ValueError, yaml.YAMLError."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > NESTING_MAX:
            raise ValueError(f"it is nested deeper than {NESTING_MAX} levels")
