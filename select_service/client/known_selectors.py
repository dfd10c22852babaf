"""Which selector a call goes to.  PURE: times are arguments, and nothing is asked here.

All calls of a scope go to one selector, so that callers of one scope meet there and see each
other's bookings at once.  Which one it is follows from the names of the scope and of the selectors
alone (rendezvous hashing), so that clients agree without talking; when it fails, its scopes spread
over the others, and nobody else moves.
"""

import random
from collections.abc import Container, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

REST_S_MIN = 0.5
REST_S_MAX = 15.0
"""How long a selector that has failed is left alone, at first and at last; twice as long each time
that it fails again."""
SCOPES_KEPT_MAX = 4096

Scope = tuple[str, str]
"""Name of the model, name of the tenant."""


class _Rest(NamedTuple):
    until: float
    failures: int


class KnownSelectors:
    """The selectors of a client and how they are: they serve, or rest after a failure."""

    def __init__(self, urls: Sequence[str], chance: random.Random) -> None:
        """urls: without a slash at the end; chance: spreads the times of rests"""
        assert urls
        self.urls = tuple(dict.fromkeys(urls))
        self._chance = chance
        self._resting: dict[str, _Rest] = {}
        self._order = lru_cache(SCOPES_KEPT_MAX)(self._ordered)

    def next(self, scope: Scope, now: float, passed: Container[str] = (), home: str = "") -> str:
        """The selector for the next attempt.

        First of those that serve, then whose rest ends soonest: when all have failed, to ask is
        better than to give up.  What was `passed` over in this call comes last.

        home: comes before all others while it serves
        """

        def place(url: str) -> tuple[bool, float, bool]:
            rest = self._resting.get(url)
            return url in passed, rest.until if rest else 0.0, url != home

        if not self._resting and not passed:
            return home or self._order(scope)[0]
        return min(self._order(scope), key=place)

    def failed(self, url: str, now: float) -> float | None:
        """It gave no answer.  Seconds until it may be asked again; None: it rests already."""
        rest = self._resting.get(url)
        if rest is not None and now < rest.until:
            return None
        failures = 1 if rest is None else rest.failures + 1
        longest = min(REST_S_MAX, REST_S_MIN * 2.0 ** min(failures - 1, 16))
        seconds = longest * self._chance.uniform(0.5, 1.0)
        self._resting[url] = _Rest(now + seconds, failures)
        return seconds

    def answered(self, url: str) -> bool:
        """It has answered well.  Did it rest until now?"""
        return self._resting.pop(url, None) is not None

    def serves(self, url: str) -> bool:
        return url not in self._resting

    def _ordered(self, scope: Scope) -> list[str]:
        return sorted(self.urls, key=lambda url: _weight(url, scope))


def _weight(url: str, scope: Scope) -> bytes:
    return blake2b("\0".join((*scope, url)).encode(), digest_size=8).digest()
