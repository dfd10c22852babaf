"""Choice of the selector for a call.  PURE: times are arguments, and no request is sent.

All calls of a scope go to one selector, so that callers of the scope see each other's reservations
at once. Rendezvous hashing of the scope and the URLs chooses the selector, so clients agree without
communication. When a selector fails, its scopes spread over the others, and no other scope moves.
"""

import random
from collections.abc import Container, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

EXCLUSION_S_MIN = 0.5
EXCLUSION_S_MAX = 15.0
"""Bounds of the exclusion of a failed selector, in seconds; each further failure doubles the time.
"""
SCOPES_KEPT_MAX = 4096

Scope = tuple[str, str]
"""Model name and tenant name."""


class _Exclusion(NamedTuple):
    until: float
    failures: int


class SelectorPool:
    """Selectors of a client with their state: serving, or excluded after a failure."""

    def __init__(self, urls: Sequence[str], chance: random.Random) -> None:
        """urls: URLs without a slash at the end;  chance: random source of the exclusion times"""
        assert urls
        self.urls = tuple(dict.fromkeys(urls))
        self._rng = chance
        self._excluded: dict[str, _Exclusion] = {}
        self._cached_order = lru_cache(SCOPES_KEPT_MAX)(self._rendezvous_order)

    def next_selector(
        self, scope: Scope, now: float, passed: Container[str] = (), home: str = ""
    ) -> str:
        """Return the selector of the next attempt.

        The order is: serving selectors, then those with the earliest end of exclusion, because an
        attempt is better than none. Selectors in `passed`, which failed in this call, come last.

        home: selector that comes first while it serves
        """

        def place(url: str) -> tuple[bool, float, bool]:
            rest = self._excluded.get(url)
            return url in passed, rest.until if rest else 0.0, url != home

        # The usual case needs no sort over all selectors.
        if not self._excluded and not passed:
            return home or self._cached_order(scope)[0]
        return min(self._cached_order(scope), key=place)

    def exclude(self, url: str, now: float) -> float | None:
        """Exclude a selector that gave no answer.

        Returns the seconds of the exclusion; None means that the selector is excluded already.
        """
        rest = self._excluded.get(url)
        # Calls that fail together count as one failure, not as many.
        if rest is not None and now < rest.until:
            return None
        failures = 1 if rest is None else rest.failures + 1
        # The exponent is bounded, else a long outage overflows the power.
        longest = min(EXCLUSION_S_MAX, EXCLUSION_S_MIN * 2.0 ** min(failures - 1, 16))
        seconds = longest * self._rng.uniform(0.5, 1.0)
        self._excluded[url] = _Exclusion(now + seconds, failures)
        return seconds

    def readmit(self, url: str) -> bool:
        """Note a good answer and return whether the selector was excluded until now."""
        return self._excluded.pop(url, None) is not None

    def is_serving(self, url: str) -> bool:
        return url not in self._excluded

    def _rendezvous_order(self, scope: Scope) -> list[str]:
        return sorted(self.urls, key=lambda url: _rendezvous_weight(url, scope))


def _rendezvous_weight(url: str, scope: Scope) -> bytes:
    # Not `hash`: Python salts it per process, and all clients must agree.
    return blake2b("\0".join((*scope, url)).encode(), digest_size=8).digest()
