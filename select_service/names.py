"""Which known name did somebody mean who wrote another one?"""

import re
from collections.abc import Iterable
from difflib import get_close_matches

SHOWN_CHARS_MAX = 64
"""Of a name that a client made up."""
CLOSE = 0.6
"""Least likeness, 0 to 1, of a name that is proposed (see difflib)."""

_HUMP = re.compile(r"(?<=[a-z0-9])([A-Z])")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` looks most like, written in whatever case; None: none is like it.

    Costs some microseconds for each known name.
    """
    by_plain = {_plain(each): each for each in known}
    wanted = _plain(name[:SHOWN_CHARS_MAX])
    found = get_close_matches(wanted, by_plain, 1, CLOSE)
    if not found and wanted:
        found = [each for each in by_plain if each.startswith(wanted) or each.endswith(wanted)][:1]
    return by_plain[found[0]] if found else None


def shown(name: str) -> str:
    """`name` as a message may have it: not long, and printable."""
    text = name if len(name) <= SHOWN_CHARS_MAX else name[:SHOWN_CHARS_MAX] + "..."
    return text if text.isprintable() else ascii(text)[1:-1]


def _plain(name: str) -> str:
    """maxNum-tokens -> max_num_tokens"""
    return _HUMP.sub(r"_\1", name).replace("-", "_").lower()
