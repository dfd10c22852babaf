"""Parser of canary responses.

Fields that are compared are parsed strictly and all others are ignored, so that a field added or
changed by a later engine version does not make the engine look unhealthy.

Tokens are compared by id if the top logprobs also name tokens by id.  vLLM does so on request.
SGLang names generated tokens by id and alternatives by text; texts are compared in this case, since
a near tie could not be detected otherwise.
"""

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import methodcaller
from typing import NamedTuple, TypeAlias, TypeVar, overload

import msgspec
from msgspec import Raw

from select_service.base.decode_errors import DECODE_ERRORS
from select_service.core.health.answers.answer_check import CanaryAnswer, TokenOrText

_ID = "token_id:"
"""Prefix that vLLM writes before an id in place of a text."""
_is_id = methodcaller("startswith", _ID)
_NO_NUMBER = re.compile(rb"(?<![\w\"])(NaN|-?Infinity)(?![\w\"])")
"""Spellings of NaN and infinity that Python writes but JSON forbids."""
FAULT_CHARS_MAX = 200
ID_DIGITS_MAX = 18
_INCOMPLETE_REASONS = frozenset({"abort", "error"})
"""Finish reasons of engines for an incomplete response."""


class MalformedResponse(Exception):
    """Error for a response without anything to compare; the text has the reason."""


class ParsedResponse(NamedTuple):
    """Parsed response.

    engine: engine name derived from the response format; empty if ambiguous
    weight_version: version of the model weights; empty if absent
    """

    answer: CanaryAnswer
    engine: str = ""
    weight_version: str = ""


class LikelyTokens(Sequence[Mapping[TokenOrText, float]]):
    """Top logprobs by position, parsed on first access.

    Access is rare: an answer equal to the expected one is compared by its tokens alone.
    """

    def __init__(self, text: Raw, read: Callable[[Raw], list[dict[TokenOrText, float]]]) -> None:
        self._text = text
        self._read = read

    @cached_property
    def _positions(self) -> list[dict[TokenOrText, float]]:
        return self._read(self._text)

    @overload
    def __getitem__(self, at: int) -> Mapping[TokenOrText, float]: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Mapping[TokenOrText, float]]: ...
    def __getitem__(
        self, at: int | slice
    ) -> Mapping[TokenOrText, float] | Sequence[Mapping[TokenOrText, float]]:
        return self._positions[at]

    def __len__(self) -> int:
        return len(self._positions)


class _Logprobs(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: Raw = Raw()


class _Choice(msgspec.Struct):
    logprobs: _Logprobs | None = None
    token_ids: list[int] | None = None
    finish_reason: Raw = Raw()
    stop_reason: Raw = Raw()
    matched_stop: Raw = Raw()
    weight_versions: Raw = Raw()


class _Completion(msgspec.Struct):
    """Response of /v1/completions."""

    choices: list[_Choice]
    metadata: Raw = Raw()


_Scored: TypeAlias = tuple[float | None, int, Raw]
"""Log-probability, id and text of a token."""


class _Meta(msgspec.Struct):
    output_token_logprobs: list[_Scored]
    output_top_logprobs: Raw = Raw()
    finish_reason: Raw = Raw()
    weight_version: Raw = Raw()


class _Generated(msgspec.Struct):
    """Response of SGLang's /generate."""

    output_ids: list[int]
    meta_info: _Meta


class _Ended(msgspec.Struct):
    type: str


class _Metadata(msgspec.Struct):
    weight_version: str


class _Span(msgspec.Struct):
    version: str


_read_completion = msgspec.json.Decoder(_Completion).decode
_read_generated = msgspec.json.Decoder(_Generated).decode
T = TypeVar("T")


def parse_completion(body: bytes, by_ids: bool) -> ParsedResponse:
    """Parse a response of /v1/completions.

    by_ids: True compares tokens by id if the response has ids
    Raises MalformedResponse.
    """
    read = _decode_body(_read_completion, body)
    if not read.choices:
        raise MalformedResponse("no choices")
    choice = read.choices[0]
    _check_finish_reason(_decode_leniently(choice.finish_reason, str))
    engine = "vllm" if choice.stop_reason else "sglang" if choice.matched_stop else ""
    return ParsedResponse(
        _completion_answer(choice, by_ids), engine, _weight_version(read.metadata, choice)
    )


def parse_generated(body: bytes) -> ParsedResponse:
    """Parse a response of SGLang's /generate.  Raises MalformedResponse."""
    read = _decode_body(_read_generated, body)
    meta = read.meta_info
    ended = _decode_leniently(meta.finish_reason, _Ended)
    _check_finish_reason(None if ended is None else ended.type)
    logprobs = [logprob for logprob, _, _ in meta.output_token_logprobs]
    top = LikelyTokens(meta.output_top_logprobs, _scored_likely)
    version = _decode_leniently(meta.weight_version, str)
    return ParsedResponse(CanaryAnswer(read.output_ids, logprobs, top), "sglang", version or "")


def _decode_body(decode: Callable[[bytes], T], body: bytes) -> T:
    """Decode a body; NaN and infinity are read as null.  Raises MalformedResponse."""
    try:
        return decode(body)
    except DECODE_ERRORS as error:
        fault = str(error)[:FAULT_CHARS_MAX]
    # Python engines write NaN for logprobs of a broken model: that answer must be compared, not
    # reported as malformed.
    numbers, count = _NO_NUMBER.subn(b"null", body)
    if count:
        with contextlib.suppress(*DECODE_ERRORS):
            return decode(numbers)
    raise MalformedResponse(fault)


def _completion_answer(choice: _Choice, by_ids: bool) -> CanaryAnswer:
    given = choice.logprobs
    if given is None:
        return CanaryAnswer(choice.token_ids or (), ())
    names_ids = all(map(_is_id, given.tokens))
    tokens = _answer_tokens(choice.token_ids, given.tokens) if by_ids or names_ids else given.tokens
    top = LikelyTokens(given.top_logprobs, _likely_ids if names_ids else _likely_texts)
    return CanaryAnswer(tokens, given.token_logprobs, top)


def _answer_tokens(ids: list[int] | None, texts: list[str]) -> Sequence[TokenOrText]:
    """Return the token ids if the response has ids, else the texts."""
    return [_parse_token(text) for text in texts] if ids is None else ids


def _likely_texts(text: Raw) -> list[dict[TokenOrText, float]]:
    return [
        {name: logprob for name, logprob in (names or {}).items() if logprob is not None}
        for names in _decode_leniently(text, list[dict[str, float | None] | None]) or ()
    ]


def _likely_ids(text: Raw) -> list[dict[TokenOrText, float]]:
    return [
        {_parse_token(str(name)): logprob for name, logprob in names.items()}
        for names in _likely_texts(text)
    ]


def _scored_likely(text: Raw) -> list[dict[TokenOrText, float]]:
    return [
        {token: logprob for logprob, token, _ in likely or () if logprob is not None}
        for likely in _decode_leniently(text, list[list[_Scored] | None]) or ()
    ]


def _parse_token(text: str) -> TokenOrText:
    digits = text.removeprefix(_ID)
    is_id = len(digits) < len(text) and len(digits) <= ID_DIGITS_MAX and digits.isdecimal()
    return int(digits) if is_id else text


def _check_finish_reason(reason: str | None) -> None:
    if reason in _INCOMPLETE_REASONS:
        raise MalformedResponse(f"engine aborted the response: {reason}")


def _weight_version(metadata: Raw, choice: _Choice) -> str:
    told = _decode_leniently(metadata, _Metadata)
    if told is not None:
        return told.weight_version
    spans = _decode_leniently(choice.weight_versions, list[_Span])
    return spans[-1].version if spans else ""


def _decode_leniently(text: Raw, kind: type[T]) -> T | None:
    """Decode a field; None if it is absent or has another type."""
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except DECODE_ERRORS:
        return None
