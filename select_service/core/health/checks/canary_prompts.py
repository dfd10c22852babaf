"""Canary prompts: fixed prompts that check whether a rank still computes correct answers."""

from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import Literal, NamedTuple, TypeAlias

from select_service.core.health.answers.answer_check import ExpectedAnswer
from select_service.core.health.checks.hash_mixing import draw_numbers

MAX_TOKENS = 16
VOCABULARY_SIZE = 1000
LOWEST_TOKEN_ID = 10
"""Lowest token id in use; smaller ids are often special tokens."""
DEFAULT_PROMPT_LENGTHS = (5, 40, 200)
NAMES_MAX = 4096
"""Size of the LRU cache of prompt names; every answer is filed under a prompt name."""
CanaryApi: TypeAlias = Literal["openai", "sglang"]
"""API of the engine: OpenAI's /v1/completions, or SGLang's own /generate."""


class CanaryPrompt(NamedTuple):
    """Prompt of a check.

    prompt: token ids or text
    expected: answer given by the operator; None means that the reference is learnt from ranks
    """

    prompt: tuple[int, ...] | str
    max_tokens: int = MAX_TOKENS
    expected: ExpectedAnswer | None = None

    @property
    def name(self) -> str:
        """Stable name of the prompt, equal in every process."""
        return _hash_prompt(self.prompt, self.max_tokens)


@lru_cache(NAMES_MAX)
def _hash_prompt(prompt: tuple[int, ...] | str, max_tokens: int) -> str:
    # Not hash(): Python salts it per process, and names are keys in the persisted references.
    return blake2b(repr((prompt, max_tokens)).encode(), digest_size=8).hexdigest()


def default_prompts(vocab_size: int = VOCABULARY_SIZE) -> tuple[CanaryPrompt, ...]:
    """Return pseudo-random prompts, always the same, without knowledge of the model.

    Raises ValueError if the vocabulary is too small.
    """
    if vocab_size <= LOWEST_TOKEN_ID:
        raise ValueError(
            f"vocab_size must be more than {LOWEST_TOKEN_ID}, got {vocab_size}: "
            "give the vocabulary size of the model"
        )
    return tuple(
        CanaryPrompt(tuple(islice(draw_numbers(length, LOWEST_TOKEN_ID, vocab_size), length)))
        for length in DEFAULT_PROMPT_LENGTHS
    )
