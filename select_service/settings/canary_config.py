"""The canary file -> what engines of each model are asked, and how."""

from collections.abc import Mapping
from math import inf
from typing import Annotated, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta
from msgspec.structs import astuple

from select_service.core.health.canary_prompts import (
    LOWEST_ID,
    VOCAB_SIZE,
    Api,
    CanaryPrompt,
    default_prompts,
)
from select_service.core.health.judging import Expected
from select_service.core.health.move_cost import KvLayout
from select_service.settings.config import ConfigError
from select_service.settings.yaml_file import by_model
from select_service.spelling import shown

PROMPTS_MAX = 32
"""Of one model."""
PROMPT_TOKENS_MAX = 8192
PROMPT_CHARS_MAX = 32_768
TOKENS_MAX = 256
"""That a canary may ask for."""
IDS_MAX = 1 << 31
SIZE_MAX = 1 << 20

INSTEAD = {
    "temperature": "leave it out, canaries are always asked at temperature 0",
    "check_logits": "it is check_logprobs here",
    "expected_top_logit_range": "it is expected_top_logprob_range here, of log-probabilities",
}
"""What stands for fields of the document that health follows."""

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
    vocab_size: Annotated[int, Meta(gt=LOWEST_ID, le=IDS_MAX)] = VOCAB_SIZE
    api: Api = "openai"
    kv_layout: _KvLayout | None = None


_OfModel: TypeAlias = Prompts | _Model


class ModelCanaries(NamedTuple):
    """prompts: none of them: engines of the model are not checked

    kv_layout: None: unknown, so that no cache of it is ever carried over
    """

    prompts: tuple[CanaryPrompt, ...]
    api: Api = "openai"
    kv_layout: KvLayout | None = None


class CanaryConfig:
    """Of every model; those that the file does not name are asked made up prompts."""

    def __init__(self, models: Mapping[str, ModelCanaries] | None = None) -> None:
        self._models = dict(models or {})
        self._others = ModelCanaries(default_prompts())

    def of(self, model_name: str) -> ModelCanaries:
        """What its engines are asked."""
        return self._models.get(model_name, self._others)


def read_canary_config(path: str) -> CanaryConfig:
    """Raises ConfigError."""
    models = by_model("canary file", path, _OfModel, INSTEAD)
    return CanaryConfig({name: _canaries(path, name, given) for name, given in models.items()})


def _canaries(path: str, model: str, given: tuple[_Prompt, ...] | _Model) -> ModelCanaries:
    """Raises ConfigError."""
    if isinstance(given, tuple):
        given = _Model(given)
    layout = None if given.kv_layout is None else KvLayout(*astuple(given.kv_layout))
    if given.prompts is None:
        return ModelCanaries(default_prompts(given.vocab_size), given.api, layout)
    prompts = []
    for number, each in enumerate(given.prompts):
        fault = _fault(each)
        if fault is not None:
            where = f"model `{shown(model)}`, prompt {number + 1}"
            raise ConfigError(f"canary file {path}: {where}: {fault}")
        prompts.append(CanaryPrompt(each.prompt, each.max_tokens, _expected(each)))
    return ModelCanaries(tuple(prompts), given.api, layout)


def _fault(given: _Prompt) -> str | None:
    """What contradicts itself."""
    expected, bounds = given.expected_tokens, given.expected_top_logprob_range
    if expected is not None and len(expected) > given.max_tokens:
        return f"{len(expected)} expected_tokens, but max_tokens is {given.max_tokens}"
    if expected is None and bounds is not None:
        return "expected_top_logprob_range needs expected_tokens"
    if bounds is not None and not bounds[0] <= bounds[1]:
        return f"expected_top_logprob_range: {bounds[0]:g} is not below {bounds[1]:g}"
    if bounds is not None and given.check_logprobs is False:
        return "expected_top_logprob_range counts for nothing with check_logprobs: false"
    return None


def _expected(given: _Prompt) -> Expected | None:
    if given.expected_tokens is None:
        return None
    bounds = given.expected_top_logprob_range
    checks = given.check_logprobs if given.check_logprobs is not None else bounds is not None
    return Expected(given.expected_tokens, bounds or (-inf, inf), checks)
