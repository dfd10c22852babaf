"""A YAML document that an operator wrote: bounded, and read with one line for every fault."""

from collections.abc import Mapping
from pathlib import Path

import yaml

from select_service.whole_file import read_whole

BYTES_MAX = 1 << 20
REPEATED_MAX = 1_000_000
"""Values that aliases may stand for."""
NESTING_MAX = 64
"""Far deeper the reader, which calls itself for every level, would end the process."""
KEY_CHARS_MAX = 100
"""Of a key that are shown in a message."""
MERGED = "<<"
"""Takes over the keys of another mapping; may stand there for several."""
NOT_A_NUMBER = (".nan", ".NaN", ".NAN")
IN_WORDS: Mapping[str, str] = {
    "did not find expected ',' or ']'": "a list that began with [ has no ]",
    "did not find expected ',' or '}'": "a mapping that began with { has no }",
    "did not find expected node content": "a value is missing here",
    "did not find expected key": "the indentation does not fit the lines above",
    "did not find expected '-' indicator": "the indentation does not fit the lines above",
    "did not find expected <document start>": "the indentation does not fit the lines above",
    "could not find expected ':'": "a key has no colon behind it",
    "mapping values are not allowed in this context": (
        "a key cannot stand here: look at the indentation, and quote a text that has a colon"
    ),
    "block sequence entries are not allowed in this context": (
        "an entry with - cannot stand here: begin a new line below its key"
    ),
    "found character that cannot start any token": (
        "indent with spaces instead of tabs, and quote a text that begins with @, % or `"
    ),
    "found a tab character that violates indentation": "indent with spaces instead of tabs",
    "found unexpected end of stream": "a quoted text does not end",
    "found undefined alias": "* names an anchor that is not there: quote the text",
    "found unknown escape character": (
        "a backslash in double quotes begins what is not known: use single quotes"
    ),
    "but found another document": "a second document begins here (---), and there may be one",
}
"""What libyaml finds, for people."""
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
    _look_through(text)
    try:
        document: object = yaml.load(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(_fault(error, text)) from None
    except YAML_FAULTS as error:
        raise ValueError(f"a value cannot be read, quote it if it is a text: {error}") from None
    return document


def _fault(error: yaml.YAMLError, text: bytes) -> str:
    """The fault in one line, with its place."""
    if isinstance(error, yaml.reader.ReaderError):
        line = text[: error.position].count(b"\n") + 1
        return f"line {line}: a character that no YAML has: write the file in UTF-8"
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem is None:
        return "it is no YAML: " + " ".join(str(error).split())
    mark = error.problem_mark or error.context_mark
    place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
    if error.problem.startswith("could not determine a constructor"):
        return f"{place}tags (!) are not supported: leave it out, or quote the text"
    return place + IN_WORDS.get(error.problem, f"it is no YAML ({error.problem})")


class _Level:
    """A mapping or a list that is open. lines: of the keys of a mapping so far; None: a list"""

    __slots__ = ("is_key_next", "lines")

    def __init__(self, lines: dict[str, int] | None) -> None:
        self.lines = lines
        self.is_key_next = lines is not None


class _Repeats:
    """How many values aliases (*) add: a few lines can stand for more than fits into memory."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self._open: list[tuple[str | None, int]] = []
        self._passed = self._repeated = 0

    def take(self, event: yaml.NodeEvent) -> None:
        """Count a value.  Raises ValueError."""
        size = 1
        if isinstance(event, yaml.AliasEvent) and event.anchor is not None:
            if any(anchor == event.anchor for anchor, _ in self._open):
                raise ValueError(
                    f"`*{event.anchor}` stands inside of what it repeats: leave it out"
                )
            size = self._sizes.get(event.anchor, 1)
            self._repeated += size
        self._passed += size
        if self._repeated > REPEATED_MAX:
            raise ValueError(f"aliases (*) repeat more than {REPEATED_MAX} values: write fewer")
        if isinstance(event, yaml.CollectionStartEvent):
            self._open.append((event.anchor, self._passed))
        elif isinstance(event, yaml.ScalarEvent) and event.anchor:
            self._sizes[event.anchor] = 1

    def end(self) -> None:
        """Leave a collection."""
        anchor, before = self._open.pop()
        if anchor:
            self._sizes[anchor] = self._passed - before + 1


def _look_through(text: bytes) -> None:
    """By the events of a first reading, which need no stack: is it too deep for the second one, and
    is a key there twice, of which that one would keep the last?

    Raises ValueError.
    """
    try:
        _look_at_events(text)
    except yaml.YAMLError as error:
        raise ValueError(_fault(error, text)) from None


def _look_at_events(text: bytes) -> None:
    """Raises ValueError, yaml.YAMLError."""
    levels: list[_Level] = []
    repeats = _Repeats()
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionEndEvent):
            repeats.end()
            levels.pop()
        elif isinstance(event, yaml.NodeEvent):
            _refuse_not_a_number(event)
            repeats.take(event)
            if levels and levels[-1].lines is not None:
                _pass_node(levels[-1], levels[-1].lines, event)
            if isinstance(event, yaml.CollectionStartEvent):
                levels.append(_Level({} if isinstance(event, yaml.MappingStartEvent) else None))
        if len(levels) > NESTING_MAX:
            raise ValueError(f"it is nested deeper than {NESTING_MAX} levels")


def _refuse_not_a_number(event: yaml.NodeEvent) -> None:
    """Raises ValueError."""
    if isinstance(event, yaml.ScalarEvent) and event.implicit[0] and event.value in NOT_A_NUMBER:
        assert event.start_mark is not None
        raise ValueError(f"line {event.start_mark.line + 1}: {event.value} is no number: give one")


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
