"""A YAML document that an operator wrote: bounded, and read with one line for every fault."""

from pathlib import Path

import msgspec
import yaml

from select_service.whole_file import read_whole

BYTES_MAX = 1 << 20
NESTING_MAX = 64
"""Far deeper the reader, which calls itself for every level, would end the process."""
KEY_CHARS_MAX = 100
"""Of a key that are shown in a message."""
MERGED = "<<"
"""Takes over the keys of another mapping; may stand there for several."""
YAML_FAULTS = (ValueError, LookupError, AttributeError, RecursionError)
"""What the YAML reader lets out for dates, numbers and tagged scalars that it cannot make."""


def read_document(path: str, bytes_max: int = BYTES_MAX) -> object:
    """Raises ValueError with one line that names no file."""
    try:
        text = read_whole(Path(path), bytes_max)
    except OSError as error:
        raise ValueError(error.strerror or type(error).__name__) from None
    return decoded(text)


def decoded(text: bytes) -> object:
    """Raises ValueError with one line."""
    try:
        _look_through(text)
        document: object = msgspec.yaml.decode(text)
    except (msgspec.DecodeError, yaml.YAMLError) as error:
        raise ValueError(" ".join(str(error).split())) from None
    except YAML_FAULTS as error:
        raise ValueError(f"a value cannot be read: {error}") from None
    return document


class _Level:
    """A mapping or a list that is open. lines: of the keys of a mapping so far; None: a list"""

    __slots__ = ("is_key_next", "lines")

    def __init__(self, lines: dict[str, int] | None) -> None:
        self.lines = lines
        self.is_key_next = lines is not None


def _look_through(text: bytes) -> None:
    """By the events of a first reading, which need no stack: is it too deep for the second one, and
    is a key there twice, of which that one would keep the last?

    Raises ValueError, yaml.YAMLError.
    """
    levels: list[_Level] = []
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionEndEvent):
            levels.pop()
        elif isinstance(event, yaml.NodeEvent):
            if levels and levels[-1].lines is not None:
                _pass_node(levels[-1], levels[-1].lines, event)
            if isinstance(event, yaml.CollectionStartEvent):
                levels.append(_Level({} if isinstance(event, yaml.MappingStartEvent) else None))
        if len(levels) > NESTING_MAX:
            raise ValueError(f"it is nested deeper than {NESTING_MAX} levels")


def _pass_node(level: _Level, lines: dict[str, int], event: yaml.NodeEvent) -> None:
    """A key or a value of a mapping.  Raises ValueError.  Keys are compared as they are written."""
    is_key, level.is_key_next = level.is_key_next, not level.is_key_next
    if not is_key or not isinstance(event, yaml.ScalarEvent) or event.value == MERGED:
        return
    assert event.start_mark is not None
    line = event.start_mark.line + 1
    if event.value in lines:
        key = repr(event.value[:KEY_CHARS_MAX])
        raise ValueError(f"the key {key} of line {lines[event.value]} is repeated in line {line}")
    lines[event.value] = line
