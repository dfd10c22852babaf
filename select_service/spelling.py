"""Which known name did somebody mean who wrote another one?"""

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches

SHOWN_CHARS_MAX = 64
"""Of a name that a client made up."""
CLOSE = 0.6
"""Least likeness, 0 to 1, of a name that is proposed (see difflib)."""
PART_CHARS_MIN = 3
"""Of a name that is the beginning or the end of a known one."""

_HUMP = re.compile(r"(?<=[a-z0-9])([A-Z])")


def plain(name: str) -> str:
    """maxNum-tokens -> max_num_tokens"""
    return _HUMP.sub(r"_\1", name).replace("-", "_").lower()


def nearest(
    name: str, known: Iterable[str], of: Callable[[str], str] = plain, close: float = CLOSE
) -> str | None:
    """The known name that `name` looks most like; None: none is like it.

    of: what is compared of a name
    Costs some microseconds for each known name.
    """
    by_part = {of(each): each for each in known}
    wanted = of(name[:SHOWN_CHARS_MAX])
    found = get_close_matches(wanted, by_part, 1, close)
    if not found and len(wanted) >= PART_CHARS_MIN and close <= CLOSE:
        found = [each for each in by_part if each.startswith(wanted) or each.endswith(wanted)][:1]
    return by_part[found[0]] if found else None


def shown(name: str) -> str:
    """`name` as a message may have it: not long, and printable."""
    text = name if len(name) <= SHOWN_CHARS_MAX else name[:SHOWN_CHARS_MAX] + "..."
    return text if text.isprintable() else ascii(text)[1:-1]
