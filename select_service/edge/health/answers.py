"""What an engine answers to a canary -> the answer that is judged.

Read strictly where it is judged and not at all elsewhere, so that no field that a later engine adds
or changes makes it look sick.

Tokens are compared by id where the likeliest ones are named by id, too.  vLLM does so when it is
asked to; SGLang names ids of what it generated and texts of what it could have, so texts are taken
there, as a near tie could not be found otherwise.
"""

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import methodcaller
from typing import NamedTuple, TypeAlias, TypeVar, overload

import msgspec
from msgspec import Raw

from select_service.core.health.judging import Answer, Token
from select_service.unreadable_json import UNREADABLE

_ID = "token_id:"
"""What vLLM writes before an id that stands for a text."""
_is_id = methodcaller("startswith", _ID)
_NO_NUMBER = re.compile(rb"(?<![\w\"])(NaN|-?Infinity)(?![\w\"])")
"""What Python writes for numbers that are none."""
FAULT_CHARS_MAX = 200
ID_DIGITS_MAX = 18
_BROKEN_OFF = frozenset({"abort", "error"})
"""Reasons of the engine's own for an answer that is not complete."""


class MalformedAnswer(Exception):
    """Nothing in it can be judged; the text says why."""


class ReadAnswer(NamedTuple):
    """engine: which one it is by the form of its answer; empty when it could be any.

    weight_version: of what it says it runs; empty when it does not say.
    """

    answer: Answer
    engine: str = ""
    weight_version: str = ""


class LikelyTokens(Sequence[Mapping[Token, float]]):
    """Per position.  Read when somebody looks, as hardly anybody does: an answer that is as it was
    expected is compared by its tokens alone."""

    def __init__(self, text: Raw, read: Callable[[Raw], list[dict[Token, float]]]) -> None:
        self._text = text
        self._read = read

    @cached_property
    def _positions(self) -> list[dict[Token, float]]:
        return self._read(self._text)

    @overload
    def __getitem__(self, at: int) -> Mapping[Token, float]: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Mapping[Token, float]]: ...
    def __getitem__(
        self, at: int | slice
    ) -> Mapping[Token, float] | Sequence[Mapping[Token, float]]:
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
    """Of /v1/completions."""

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
    """Of SGLang's /generate."""

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


def completion(body: bytes, by_ids: bool) -> ReadAnswer:
    """by_ids: is it to be compared with ids, if it has any?  Raises MalformedAnswer."""
    read = _decoded(_read_completion, body)
    if not read.choices:
        raise MalformedAnswer("no choices")
    choice = read.choices[0]
    _check_end(_lenient(choice.finish_reason, str))
    engine = "vllm" if choice.stop_reason else "sglang" if choice.matched_stop else ""
    return ReadAnswer(_answer(choice, by_ids), engine, _version(read.metadata, choice))


def generated(body: bytes) -> ReadAnswer:
    """Raises MalformedAnswer."""
    read = _decoded(_read_generated, body)
    meta = read.meta_info
    ended = _lenient(meta.finish_reason, _Ended)
    _check_end(None if ended is None else ended.type)
    logprobs = [logprob for logprob, _, _ in meta.output_token_logprobs]
    top = LikelyTokens(meta.output_top_logprobs, _scored_likely)
    version = _lenient(meta.weight_version, str)
    return ReadAnswer(Answer(read.output_ids, logprobs, top), "sglang", version or "")


def _decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    """Raises MalformedAnswer."""
    try:
        return decode(body)
    except UNREADABLE as error:
        fault = str(error)[:FAULT_CHARS_MAX]
    numbers, count = _NO_NUMBER.subn(b"null", body)
    if count:
        with contextlib.suppress(*UNREADABLE):
            return decode(numbers)
    raise MalformedAnswer(fault)


def _answer(choice: _Choice, by_ids: bool) -> Answer:
    given = choice.logprobs
    if given is None:
        return Answer(choice.token_ids or (), ())
    names_ids = all(map(_is_id, given.tokens))
    tokens = _tokens(choice.token_ids, given.tokens) if by_ids or names_ids else given.tokens
    top = LikelyTokens(given.top_logprobs, _likely_ids if names_ids else _likely_texts)
    return Answer(tokens, given.token_logprobs, top)


def _tokens(ids: list[int] | None, texts: list[str]) -> Sequence[Token]:
    """Ids, wherever they stand; texts if they stand nowhere."""
    return [_token(text) for text in texts] if ids is None else ids


def _likely_texts(text: Raw) -> list[dict[Token, float]]:
    return [
        {name: logprob for name, logprob in (names or {}).items() if logprob is not None}
        for names in _lenient(text, list[dict[str, float | None] | None]) or ()
    ]


def _likely_ids(text: Raw) -> list[dict[Token, float]]:
    return [
        {_token(str(name)): logprob for name, logprob in names.items()}
        for names in _likely_texts(text)
    ]


def _scored_likely(text: Raw) -> list[dict[Token, float]]:
    return [
        {token: logprob for logprob, token, _ in likely or () if logprob is not None}
        for likely in _lenient(text, list[list[_Scored] | None]) or ()
    ]


def _token(text: str) -> Token:
    digits = text.removeprefix(_ID)
    is_id = len(digits) < len(text) and len(digits) <= ID_DIGITS_MAX and digits.isdecimal()
    return int(digits) if is_id else text


def _check_end(reason: str | None) -> None:
    if reason in _BROKEN_OFF:
        raise MalformedAnswer(f"the engine broke it off: {reason}")


def _version(metadata: Raw, choice: _Choice) -> str:
    told = _lenient(metadata, _Metadata)
    if told is not None:
        return told.weight_version
    spans = _lenient(choice.weight_versions, list[_Span])
    return spans[-1].version if spans else ""


def _lenient(text: Raw, kind: type[T]) -> T | None:
    """None where it is absent or something else."""
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except UNREADABLE:
        return None
