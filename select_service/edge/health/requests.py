"""What a canary asks of an engine, in each of the forms in which engines take it.

Source: vLLM 0.33 and SGLang 0.5.23, whose `/v1/completions` take the same fields.
"""

from functools import lru_cache
from os import urandom
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
SALT_BYTES = 11
"""In hexadecimal digits 22 characters."""
PREPARED_MAX = 256
"""Bodies that are kept, without what is another each time."""


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
        content = _generate(prompt, max_tokens, dp_rank)
        if form == "generate":  # which has no `cache_salt`
            content = b'%b,"extra_key":"%b"}' % (content[:-1], _salt())
        return Message("/generate", headers, content)
    content = _completions(form, model, prompt, max_tokens)
    if form == "full":
        content = b'%b,"seed":%d,"cache_salt":"%b"}' % (content[:-1], seed, _salt())
    return Message("/v1/completions", headers, content)


def _salt() -> bytes:
    """Never the same twice; it keeps a prompt out of the prefixes of others."""
    return urandom(SALT_BYTES).hex().encode()


@lru_cache(PREPARED_MAX)
def _completions(form: Form, model: str, prompt: Prompt, max_tokens: int) -> bytes:
    """What is the same each time."""
    return _encode((_Full if form == "full" else _Plain)(model, prompt, max_tokens))


@lru_cache(PREPARED_MAX)
def _generate(prompt: Prompt, max_tokens: int, dp_rank: int | None) -> bytes:
    """What is the same each time."""
    body = _Generate(
        input_ids=UNSET if isinstance(prompt, str) else prompt,
        text=prompt if isinstance(prompt, str) else UNSET,
        sampling_params=_Sampling(max_tokens),
        routed_dp_rank=UNSET if dp_rank is None else dp_rank,
    )
    return _encode(body)
