"""What ranks are asked to see whether they still work."""

from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import Literal, NamedTuple, TypeAlias

from select_service.core.health.judging import Expected
from select_service.core.health.spread import drawn

MAX_TOKENS = 16
VOCAB_SIZE = 1000
LOWEST_ID = 10
"""Ids below often mean something of their own."""
DEFAULT_LENGTHS = (5, 40, 200)
NAMES_MAX = 4096
"""That are remembered, as every answer is filed under one."""
Api: TypeAlias = Literal["openai", "sglang"]
"""Whose routes engines have: /v1/completions, or SGLang's own /generate."""


class CanaryPrompt(NamedTuple):
    """prompt: ids or a text;  expected: None: the ranks show what is right"""

    prompt: tuple[int, ...] | str
    max_tokens: int = MAX_TOKENS
    expected: Expected | None = None

    @property
    def name(self) -> str:
        """The same for the same prompt, also in another process."""
        return _name_of(self.prompt, self.max_tokens)


@lru_cache(NAMES_MAX)
def _name_of(prompt: tuple[int, ...] | str, max_tokens: int) -> str:
    return blake2b(repr((prompt, max_tokens)).encode(), digest_size=8).hexdigest()


def default_prompts(vocab_size: int = VOCAB_SIZE) -> tuple[CanaryPrompt, ...]:
    """Ids at random, always the same: no knowledge of the model is needed.

    Raises ValueError for a vocabulary that is too small.
    """
    if vocab_size <= LOWEST_ID:
        raise ValueError(f"vocab_size must be more than {LOWEST_ID}, got {vocab_size}")
    return tuple(
        CanaryPrompt(tuple(islice(drawn(length, LOWEST_ID, vocab_size), length)))
        for length in DEFAULT_LENGTHS
    )
