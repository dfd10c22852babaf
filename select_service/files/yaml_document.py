"""Reader of YAML documents written by operators: bounded, with one-line errors."""

from collections.abc import Mapping
from pathlib import Path

import yaml

from select_service.files.atomic_file import read_whole

BYTES_MAX = 1 << 20
REPEATED_MAX = 1_000_000
"""Maximum number of values that aliases may repeat."""
NESTING_MAX = 64
"""Maximum nesting; the recursive reader would crash the process far above it."""
KEY_CHARS_MAX = 100
"""Maximum number of characters of a key shown in a message."""
MERGE_KEY = "<<"
"""Merge key, which includes the keys of other mappings and may be repeated."""
NOT_A_NUMBER = (".nan", ".NaN", ".NAN")
READABLE_PROBLEMS: Mapping[str, str] = {
    "did not find expected ',' or ']'": "a list starting with [ has no ]",
    "did not find expected ',' or '}'": "a mapping starting with { has no }",
    "did not find expected node content": "a value is missing here",
    "did not find expected key": "the indentation does not fit the lines above",
    "did not find expected '-' indicator": "the indentation does not fit the lines above",
    "did not find expected <document start>": "the indentation does not fit the lines above",
    "could not find expected ':'": "a key has no colon after it",
    "mapping values are not allowed in this context": (
        "a key is not allowed here: check the indentation, and quote a text with a colon"
    ),
    "block sequence entries are not allowed in this context": (
        "an entry with - is not allowed here: begin a new line below its key"
    ),
    "found character that cannot start any token": (
        "indent with spaces instead of tabs, and quote a text that begins with @, % or `"
    ),
    "found a tab character that violates indentation": "indent with spaces instead of tabs",
    "found unexpected end of stream": "a quoted text has no end",
    "found undefined alias": "* refers to an undefined anchor: quote the text",
    "found unknown escape character": (
        "unknown escape sequence in double quotes: use single quotes"
    ),
    "but found another document": "a second document begins here (---): give one document",
}
"""Readable messages for problems reported by libyaml."""
YAML_VALUE_ERRORS = (ValueError, LookupError, AttributeError, RecursionError)
"""Exceptions of the YAML reader for invalid dates, numbers and tagged scalars."""


def read_document(path: str, bytes_max: int = BYTES_MAX) -> object:
    """Return the document in a file.

    Raises ValueError with a one-line message without the file name.
    """
    try:
        text = read_whole(Path(path), bytes_max)
    except OSError as error:
        raise ValueError(error.strerror or type(error).__name__) from None
    return decode_yaml(text)


def decode_yaml(text: bytes) -> object:
    """Return a document.  Raises ValueError with a one-line message."""
    # Before `yaml.load`: its recursion and silent overwriting cannot be limited.
    _check_structure(text)
    try:
        document: object = yaml.load(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(_yaml_error_text(error, text)) from None
    except YAML_VALUE_ERRORS as error:
        raise ValueError(f"a value cannot be read, quote it if it is a text: {error}") from None
    return document


def _yaml_error_text(error: yaml.YAMLError, text: bytes) -> str:
    """Return the error on one line, with its position."""
    if isinstance(error, yaml.reader.ReaderError):
        line = text[: error.position].count(b"\n") + 1
        return f"line {line}: invalid character: write the file in UTF-8"
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem is None:
        return "not YAML: " + " ".join(str(error).split())
    mark = error.problem_mark or error.context_mark
    place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
    if error.problem.startswith("could not determine a constructor"):
        return f"{place}tags (!) are not supported: remove the tag, or quote the text"
    return place + READABLE_PROBLEMS.get(error.problem, f"not YAML ({error.problem})")


class _Level:
    """Open mapping or list.

    lines: line of each key of a mapping so far; None for a list
    """

    __slots__ = ("is_key_next", "lines")

    def __init__(self, lines: dict[str, int] | None) -> None:
        self.lines = lines
        self.is_key_next = lines is not None


class _AliasCounter:
    """Counter of values repeated by aliases (*): a few lines can expand to more than the memory."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self._open: list[tuple[str | None, int]] = []
        self._passed = self._repeated = 0

    def count_node(self, event: yaml.NodeEvent) -> None:
        """Count a value.  Raises ValueError."""
        size = 1
        if isinstance(event, yaml.AliasEvent) and event.anchor is not None:
            if any(anchor == event.anchor for anchor, _ in self._open):
                raise ValueError(f"`*{event.anchor}` refers to its own parent: remove it")
            size = self._sizes.get(event.anchor, 1)
            self._repeated += size
        self._passed += size
        # "Billion laughs": nested aliases expand exponentially, so values are counted before
        # expansion.
        if self._repeated > REPEATED_MAX:
            raise ValueError(f"aliases (*) repeat more than {REPEATED_MAX} values: write fewer")
        if isinstance(event, yaml.CollectionStartEvent):
            self._open.append((event.anchor, self._passed))
        elif isinstance(event, yaml.ScalarEvent) and event.anchor:
            self._sizes[event.anchor] = 1

    def end_collection(self) -> None:
        """Close a collection."""
        anchor, before = self._open.pop()
        if anchor:
            self._sizes[anchor] = self._passed - before + 1


def _check_structure(text: bytes) -> None:
    """Raise ValueError for deep nesting and repeated keys.

    Uses parser events, which need no recursion; the second pass recurses and keeps the last of
    repeated keys.
    """
    try:
        _check_events(text)
    except yaml.YAMLError as error:
        raise ValueError(_yaml_error_text(error, text)) from None


def _check_events(text: bytes) -> None:
    """Check the parser events.  Raises ValueError, yaml.YAMLError."""
    levels: list[_Level] = []
    repeats = _AliasCounter()
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionEndEvent):
            repeats.end_collection()
            levels.pop()
        elif isinstance(event, yaml.NodeEvent):
            _reject_nan(event)
            repeats.count_node(event)
            if levels and levels[-1].lines is not None:
                _record_node(levels[-1], levels[-1].lines, event)
            if isinstance(event, yaml.CollectionStartEvent):
                levels.append(_Level({} if isinstance(event, yaml.MappingStartEvent) else None))
        if len(levels) > NESTING_MAX:
            raise ValueError(f"nested deeper than {NESTING_MAX} levels")


def _reject_nan(event: yaml.NodeEvent) -> None:
    """Raise ValueError for NaN."""
    if isinstance(event, yaml.ScalarEvent) and event.implicit[0] and event.value in NOT_A_NUMBER:
        assert event.start_mark is not None
        raise ValueError(
            f"line {event.start_mark.line + 1}: {event.value} is not a number: give one"
        )


def _record_node(level: _Level, lines: dict[str, int], event: yaml.NodeEvent) -> None:
    """Record a key or value of a mapping.

    Raises ValueError for a repeated key, compared as written.
    """
    is_key, level.is_key_next = level.is_key_next, not level.is_key_next
    if not is_key or not isinstance(event, yaml.ScalarEvent) or event.value == MERGE_KEY:
        return
    assert event.start_mark is not None
    line = event.start_mark.line + 1
    if event.value in lines:
        key = repr(event.value[:KEY_CHARS_MAX])
        raise ValueError(f"the key {key} of line {lines[event.value]} is repeated in line {line}")
    lines[event.value] = line
