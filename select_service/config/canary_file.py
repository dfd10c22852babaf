"""Canary file: prompts and model facts for health checks, by model."""

from collections.abc import Mapping
from math import inf
from typing import Annotated, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta
from msgspec.structs import astuple

from select_service.base.suggestions import printable_name
from select_service.config.per_model_file import read_by_model
from select_service.config.settings_loader import ConfigError
from select_service.core.health.answers.answer_check import ExpectedAnswer
from select_service.core.health.checks.canary_prompts import (
    LOWEST_TOKEN_ID,
    VOCABULARY_SIZE,
    CanaryApi,
    CanaryPrompt,
    default_prompts,
)
from select_service.core.health.migration.move_cost import CacheLayout

PROMPTS_MAX = 32
"""Maximum number of prompts per model."""
PROMPT_TOKENS_MAX = 8192
PROMPT_CHARS_MAX = 32_768
TOKENS_MAX = 256
"""Maximum number of output tokens of a canary."""
IDS_MAX = 1 << 31
SIZE_MAX = 1 << 20

FIELD_ADVICE = {
    "temperature": "remove it, canaries always use temperature 0",
    "check_logits": "use check_logprobs",
    "expected_top_logit_range": "use expected_top_logprob_range, in log-probabilities",
}
"""Advice for fields that have another name here than in Dynamo's canary files."""

TokenId: TypeAlias = Annotated[int, Meta(ge=0, lt=IDS_MAX)]
Ids: TypeAlias = Annotated[tuple[TokenId, ...], Meta(min_length=1, max_length=PROMPT_TOKENS_MAX)]
Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=PROMPT_CHARS_MAX)]
Size: TypeAlias = Annotated[int, Meta(ge=1, le=SIZE_MAX)]
Answered: TypeAlias = Annotated[tuple[TokenId, ...], Meta(min_length=1, max_length=TOKENS_MAX)]


class _Prompt(msgspec.Struct, forbid_unknown_fields=True):
    prompt: Ids | Text
    max_tokens: Annotated[int, Meta(ge=1, le=TOKENS_MAX)] = 16
    expected_tokens: Answered | None = None
    expected_top_logprob_range: tuple[float, float] | None = None
    check_logprobs: bool | None = None


Prompts: TypeAlias = Annotated[tuple[_Prompt, ...], Meta(max_length=PROMPTS_MAX)]


class _KvLayout(msgspec.Struct, forbid_unknown_fields=True):
    block_size: Size
    layers: Size
    kv_heads: Size
    head_dim: Size
    dtype_bytes: Size
    tp: Size = 1


class _Model(msgspec.Struct, forbid_unknown_fields=True):
    prompts: Prompts | None = None
    vocab_size: Annotated[int, Meta(gt=LOWEST_TOKEN_ID, le=IDS_MAX)] = VOCABULARY_SIZE
    api: CanaryApi = "openai"
    kv_layout: _KvLayout | None = None


_OfModel: TypeAlias = Prompts | _Model


class ModelCanaries(NamedTuple):
    """Canaries of a model.

    prompts: canary prompts; empty means that engines of the model are not checked
    kv_layout: cache layout; None means unknown, so that the cache is never transferred
    """

    prompts: tuple[CanaryPrompt, ...]
    api: CanaryApi = "openai"
    kv_layout: CacheLayout | None = None


class CanaryFile:
    """Canaries of all models; models not in the file get random prompts."""

    def __init__(self, models: Mapping[str, ModelCanaries] | None = None) -> None:
        self._models = dict(models or {})
        self._others = ModelCanaries(default_prompts())

    def model_canaries(self, model_name: str) -> ModelCanaries:
        """Return the canaries of a model."""
        return self._models.get(model_name, self._others)


def read_canary_config(path: str) -> CanaryFile:
    """Return the content of the canary file.  Raises ConfigError."""
    models = read_by_model("canary file", path, _OfModel, FIELD_ADVICE)
    return CanaryFile({name: _make_canaries(path, name, given) for name, given in models.items()})


def _make_canaries(path: str, model: str, given: tuple[_Prompt, ...] | _Model) -> ModelCanaries:
    """Return the canaries of a model.  Raises ConfigError."""
    if isinstance(given, tuple):
        given = _Model(given)
    layout = None if given.kv_layout is None else CacheLayout(*astuple(given.kv_layout))
    if given.prompts is None:
        return ModelCanaries(default_prompts(given.vocab_size), given.api, layout)
    prompts = []
    for number, each in enumerate(given.prompts):
        fault = _contradiction(each)
        if fault is not None:
            where = f"model `{printable_name(model)}`, prompt {number + 1}"
            raise ConfigError(f"canary file {path}: {where}: {fault}")
        prompts.append(CanaryPrompt(each.prompt, each.max_tokens, _make_expected(each)))
    return ModelCanaries(tuple(prompts), given.api, layout)


def _contradiction(given: _Prompt) -> str | None:
    """Return the contradiction in a prompt, or None."""
    expected, bounds = given.expected_tokens, given.expected_top_logprob_range
    if expected is not None and len(expected) > given.max_tokens:
        return f"{len(expected)} expected_tokens, but max_tokens is {given.max_tokens}"
    if expected is None and bounds is not None:
        return "expected_top_logprob_range needs expected_tokens"
    if bounds is not None and not bounds[0] <= bounds[1]:
        return f"expected_top_logprob_range: {bounds[0]:g} is not below {bounds[1]:g}"
    if bounds is not None and given.check_logprobs is False:
        return "expected_top_logprob_range has no effect with check_logprobs: false"
    return None


def _make_expected(given: _Prompt) -> ExpectedAnswer | None:
    if given.expected_tokens is None:
        return None
    bounds = given.expected_top_logprob_range
    # A range without an explicit switch would otherwise be silently unused.
    checks = given.check_logprobs if given.check_logprobs is not None else bounds is not None
    return ExpectedAnswer(given.expected_tokens, bounds or (-inf, inf), checks)
