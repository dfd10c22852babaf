"""What a canary asks of an engine, in each of the forms in which engines take it.

Source: vLLM 0.33 and SGLang 0.5.23, whose `/v1/completions` take the same fields.
"""

import secrets
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

Prompt: TypeAlias = tuple[int, ...] | str
"""Ids or text."""
Form: TypeAlias = Literal["full", "plain", "generate", "generate_plain"]
"""`full`: the completions of today's engines. `plain`: what every OpenAI-like engine knows of it.
`generate`: SGLang's own route, for engines without the OpenAI one. `generate_plain`: without what
its older versions may not know."""
GENERATE: frozenset[Form] = frozenset({"generate", "generate_plain"})
TOP_LOGPROBS = 5
SALT_BYTES = 16
"""In base64, without padding, 22 characters."""


class Message(NamedTuple):
    """One request.  path: below the endpoint.  headers: lines that end with CRLF."""

    path: str
    headers: bytes
    content: bytes


class _Plain(msgspec.Struct):
    model: str
    prompt: tuple[int, ...] | str
    max_tokens: int
    temperature: int = 0
    logprobs: int = TOP_LOGPROBS


class _Full(_Plain, kw_only=True):
    top_p: int = 1
    seed: int
    stream: bool = False
    return_token_ids: bool = True
    return_tokens_as_token_ids: bool = True
    ignore_eos: bool = True
    cache_salt: str


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
    extra_key: str | UnsetType = UNSET
    """What keeps a prompt out of the prefixes of others; this route has no `cache_salt`."""
    routed_dp_rank: int | UnsetType = UNSET
    """This route overlooks the header."""


_encode = msgspec.json.Encoder().encode


def message(
    form: Form,
    model: str,
    prompt: Prompt,
    max_tokens: int,
    dp_rank: int | None,
    seed: int = 0,
) -> Message:
    """dp_rank: None where the endpoint is that of one rank;  seed: only the full form has one"""
    headers = b"" if dp_rank is None else b"x-data-parallel-rank: %d\r\n" % dp_rank
    if form in GENERATE:
        key = UNSET if form == "generate_plain" else _salt()
        generate = _generate(prompt, max_tokens, dp_rank, key)
        return Message("/generate", headers, _encode(generate))
    if form == "plain":
        return Message("/v1/completions", headers, _encode(_Plain(model, prompt, max_tokens)))
    full = _Full(model, prompt, max_tokens, seed=seed, cache_salt=_salt())
    return Message("/v1/completions", headers, _encode(full))


def _salt() -> str:
    """Never the same twice."""
    return secrets.token_urlsafe(SALT_BYTES)


def _generate(
    prompt: Prompt, max_tokens: int, dp_rank: int | None, key: str | UnsetType
) -> _Generate:
    return _Generate(
        input_ids=UNSET if isinstance(prompt, str) else prompt,
        text=prompt if isinstance(prompt, str) else UNSET,
        sampling_params=_Sampling(max_tokens),
        extra_key=key,
        routed_dp_rank=UNSET if dp_rank is None else dp_rank,
    )
