"""Suggestions of known names for misspelled names ("did you mean")."""

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches

SHOWN_CHARS_MAX = 64
"""Maximum number of characters shown of an unknown name."""
SIMILARITY_MIN = 0.6
"""Minimum similarity of a suggestion, 0 to 1 (see difflib)."""
PART_CHARS_MIN = 3
"""Minimum length of a name that is the start or end of a known one."""

_HUMP = re.compile(r"(?<=[a-z0-9])([A-Z])")


def snake_case(name: str) -> str:
    """Return a name in snake case: maxNum-tokens -> max_num_tokens"""
    return _HUMP.sub(r"_\1", name).replace("-", "_").lower()


def nearest_name(
    name: str,
    known: Iterable[str],
    of: Callable[[str], str] = snake_case,
    close: float = SIMILARITY_MIN,
) -> str | None:
    """Return the most similar known name, or None.

    of: function that returns the compared part of a name
    Takes some microseconds per known name.
    """
    by_part = {of(each): each for each in known}
    # Cut first: difflib is quadratic in the length of a name that a client chooses.
    wanted = of(name[:SHOWN_CHARS_MAX])
    found = get_close_matches(wanted, by_part, 1, close)
    if not found and len(wanted) >= PART_CHARS_MIN and close <= SIMILARITY_MIN:
        found = [each for each in by_part if each.startswith(wanted) or each.endswith(wanted)][:1]
    return by_part[found[0]] if found else None


def printable_name(name: str) -> str:
    """Return a name for a message: shortened and printable."""
    text = name if len(name) <= SHOWN_CHARS_MAX else name[:SHOWN_CHARS_MAX] + "..."
    return text if text.isprintable() else ascii(text)[1:-1]
