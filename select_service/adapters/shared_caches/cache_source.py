"""Interface of the kinds of shared caches."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

ANSWER_BYTES_MAX = 1 << 20
"""Size limit of an answer; decoding it takes some milliseconds at most."""
PURPOSE = "shared_cache"
"""Label under which refused addresses are counted."""


class LookedUpPrompt(NamedTuple):
    """Prompt to be looked up, with the block size of its partition.

    is_eagle: whether the workers are registered with `is_eagle`
    """

    tokens: list[int]
    block_size: int
    is_eagle: bool


class FoundTokens(NamedTuple):
    """Leading tokens that a shared cache holds: for all ranks, and for engines by their id.

    requests: requests that the look-up sent; 0 for a result from memory
    """

    tokens: int = 0
    own_tokens: Mapping[str, int] = MappingProxyType({})
    requests: int = 0


class UnusableAnswer(ValueError):
    """Answer that contradicts itself or the request."""


class CacheSource(Protocol):
    """Shared cache of one kind; the caller limits time and concurrency."""

    async def find_tokens(self, prompt: LookedUpPrompt) -> FoundTokens:
        """Return the tokens in the cache.  Raises HttpError, DECODE_ERRORS, UnusableAnswer."""
        ...
