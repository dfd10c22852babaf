"""Canary requests in the formats that engines accept.

Source: vLLM 0.33 and SGLang 0.5.23, which take the same fields in `/v1/completions`.
"""

from functools import lru_cache
from os import urandom
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

Prompt: TypeAlias = tuple[int, ...] | str
"""Token ids or text."""
Form: TypeAlias = Literal["full", "plain", "generate", "generate_plain"]
"""Request format.

`full`: completions with all fields of current engines. `plain`: the fields of every OpenAI-like
engine. `generate`: SGLang's own route, for engines without the OpenAI route. `generate_plain`: the
same without fields that older versions may reject.
"""
GENERATE: frozenset[Form] = frozenset({"generate", "generate_plain"})
TOP_LOGPROBS = 5
SALT_BYTES = 11
"""Salt length; 22 hexadecimal characters."""
BODY_CACHE_MAX = 256
"""Size of the LRU cache of encoded bodies, without their variable part."""


class CanaryRequest(NamedTuple):
    """Canary request.

    path: path below the endpoint
    headers: headers by lower-case name
    """

    path: str
    headers: dict[str, str]
    content: bytes


class _Plain(msgspec.Struct):
    model: str
    prompt: tuple[int, ...] | str
    max_tokens: int
    temperature: int = 0
    logprobs: int = TOP_LOGPROBS


class _Full(_Plain, kw_only=True):
    top_p: int = 1
    stream: bool = False
    return_token_ids: bool = True
    return_tokens_as_token_ids: bool = True
    ignore_eos: bool = True


class _Sampling(msgspec.Struct):
    max_new_tokens: int
    temperature: int = 0
    ignore_eos: bool = True


class _Generate(msgspec.Struct, kw_only=True):
    input_ids: tuple[int, ...] | UnsetType = UNSET
    text: str | UnsetType = UNSET
    sampling_params: _Sampling
    return_logprob: bool = True
    top_logprobs_num: int = TOP_LOGPROBS
    routed_dp_rank: int | UnsetType = UNSET
    """Rank; this route ignores the header."""


_encode = msgspec.json.Encoder().encode


def make_canary_request(
    form: Form,
    model: str,
    prompt: Prompt,
    max_tokens: int,
    dp_rank: int | None,
    seed: int = 0,
) -> CanaryRequest:
    """Return a canary request.

    dp_rank: data-parallel rank; None means that the endpoint belongs to one rank
    seed: sampling seed, used by the full format only
    """
    headers = {} if dp_rank is None else {"x-data-parallel-rank": str(dp_rank)}
    if form in GENERATE:
        content = _encode_generate(prompt, max_tokens, dp_rank)
        if form == "generate":  # which has no `cache_salt`
            content = b'%b,"extra_key":"%b"}' % (content[:-1], _make_salt())
        return CanaryRequest("/generate", headers, content)
    content = _encode_completions(form, model, prompt, max_tokens)
    if form == "full":
        # Appended to the cached JSON text: encoding a long prompt for every canary would be
        # wasteful.
        content = b'%b,"seed":%d,"cache_salt":"%b"}' % (content[:-1], seed, _make_salt())
    return CanaryRequest("/v1/completions", headers, content)


def _make_salt() -> bytes:
    """Return a unique salt, which keeps the prompt out of shared prefix caches."""
    return urandom(SALT_BYTES).hex().encode()


@lru_cache(BODY_CACHE_MAX)
def _encode_completions(form: Form, model: str, prompt: Prompt, max_tokens: int) -> bytes:
    """Return the constant part of a /v1/completions body."""
    return _encode((_Full if form == "full" else _Plain)(model, prompt, max_tokens))


@lru_cache(BODY_CACHE_MAX)
def _encode_generate(prompt: Prompt, max_tokens: int, dp_rank: int | None) -> bytes:
    """Return the constant part of a /generate body."""
    body = _Generate(
        input_ids=UNSET if isinstance(prompt, str) else prompt,
        text=prompt if isinstance(prompt, str) else UNSET,
        sampling_params=_Sampling(max_tokens),
        routed_dp_rank=UNSET if dp_rank is None else dp_rank,
    )
    return _encode(body)
