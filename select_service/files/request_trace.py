"""Reader of request traces in the formats of Mooncake, Bailian and Weka, plain or gzip.

Mooncake    one JSON object per line: `timestamp` (ms from the start), `input_length`,
            `output_length` (tokens), `hash_ids`, one per 512 prompt tokens
Bailian     one JSON object per line: `chat_id`, `parent_chat_id` (-1: none), `timestamp` (s),
            `input_length`, `output_length`, `hash_ids`, one per 16 prompt tokens
Weka        one JSON object per session, in a line or in a file (.json) of its own: `block_size`,
            `hash_id_scope`, `requests` of type `n`, `s` (`t` in s, `in`, `out`, `hash_ids`) or
            `subagent` (`t`, `requests`)

Sources: https://github.com/kvcache-ai/Mooncake (FAST25-release/traces),
https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon,
https://github.com/callanjfox/kv-cache-tester (trace replay tester)
"""

import gzip
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta, Struct

MOONCAKE_BLOCK_TOKENS, BAILIAN_BLOCK_TOKENS = 512, 16
ROW_BYTES_MAX, SESSION_BYTES_MAX = 4 * 2**20, 256 * 2**20
"""Longest line of a request, and of a session."""
TOKENS_MAX = 1 << 24
"""Longest prompt or answer, in tokens."""
SECONDS_MAX = 1e12
KEYS_MAX = 1 << 26
"""Limit of blocks of all prompts that are in memory; each takes 8 bytes."""
CHATS_MAX = 1_000_000
"""Limit of chats with a known first chat; each later chat is a new session."""
SESSION_GAP_S = 10.0
"""Time between the starts of two Weka sessions, which have no common clock."""
ORIGIN_S = 1.0
"""Most seconds from a subagent's first call to the recorded start, if both have the same origin."""
KEY_MASK = 2**64 - 1
FILE_ERRORS = (
    msgspec.MsgspecError,
    ValueError,
    RecursionError,
    EOFError,
    gzip.BadGzipFile,
    zlib.error,
)
"""Exceptions for invalid file content."""

Tokens = Annotated[int, Meta(ge=0, le=TOKENS_MAX)]
Seconds = Annotated[float, Meta(ge=0.0, le=SECONDS_MAX)]
Milliseconds = Annotated[float, Meta(ge=0.0, le=1000.0 * SECONDS_MAX)]
HashIds = list[Annotated[int, Meta(ge=0)]]


class TraceError(Exception):
    """Error for a file that is not a trace; the text has the file, line and field."""


class RecordedRequest(NamedTuple):
    """Request of a trace or a log.

    output_tokens: None means unknown
    keys: one for each `key_tokens` tokens of the prompt, the last may cover fewer; equal keys
    mean equal prompts up to there
    session: number of the client's session; None means unknown
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int | None
    keys: Sequence[int]
    key_tokens: int
    session: int | None = None


class RecordedTrace(NamedTuple):
    """Requests of a trace in order of arrival, and the name of the format."""

    format_name: str
    requests: list[RecordedRequest]


class MooncakeRow(Struct):
    """Line of a Mooncake trace."""

    timestamp: Milliseconds
    output_length: Tokens
    hash_ids: HashIds
    input_length: Tokens | None = None


class BailianRow(Struct):
    """Line of a Bailian trace."""

    chat_id: int
    parent_chat_id: int
    timestamp: Seconds
    input_length: Tokens
    output_length: Tokens
    hash_ids: HashIds


class WekaCall(Struct, tag_field="type", tag="n"):
    """Call of a Weka session."""

    t: Seconds
    input_tokens: Tokens = msgspec.field(name="in")
    output_tokens: Tokens = msgspec.field(name="out")
    hash_ids: HashIds = []


class WekaStreamedCall(WekaCall, tag_field="type", tag="s"):
    """Call of a Weka session with a streamed answer."""


class WekaSubagent(Struct, tag_field="type", tag="subagent"):
    """Subagent of a Weka session, with the subagent's calls."""

    t: Seconds
    requests: "list[WekaEntry]"


WekaEntry: TypeAlias = WekaCall | WekaStreamedCall | WekaSubagent


class WekaSession(Struct):
    """Session of a Weka trace."""

    block_size: Annotated[int, Meta(ge=1, le=TOKENS_MAX)]
    requests: list[WekaEntry]
    hash_id_scope: Literal["local", "global"] = "local"


def load_trace(path: Path, requests_max: int) -> RecordedTrace:
    """Return the first requests of a trace, in order of arrival.

    Raises TraceError for invalid content or no request, OSError if a file cannot be read.
    """
    reader, keys = TraceReader(path), 0
    found: list[RecordedRequest] = []
    for request in islice(reader.read_requests(), requests_max):
        keys += len(request.keys)
        if keys > KEYS_MAX:
            raise TraceError(
                f"{path}: the first {len(found) + 1} requests have more than {KEYS_MAX} blocks: "
                "replay fewer requests"
            )
        found.append(request)
    if not found:
        raise TraceError(f"{path}: the trace has no requests")
    # Subagents run beside the agent, so a file is not in the order of arrival.
    found.sort(key=lambda each: each.at_s)
    return RecordedTrace(reader.format_name, found)


class TraceReader:
    """Reader of a trace; the first line determines the format, a folder has Weka sessions."""

    def __init__(self, path: Path) -> None:
        self.format_name = "Weka"
        self._path = path
        self._chats: dict[int, int] = {}
        self._sessions = 0

    def read_requests(self) -> Iterator[RecordedRequest]:
        """Yield the requests in order of the file.  Raises TraceError and OSError."""
        if self._path.is_dir():
            files = sorted(each for each in self._path.iterdir() if _has_one_session(each))
            if not files:
                raise TraceError(f"{self._path}: expected Weka sessions, files *.json")
        elif _has_one_session(self._path):
            files = [self._path]
        else:
            yield from self._read_lines()
            return
        for number, file in enumerate(files):
            yield from self._read_session_file(file, number)

    def _read_session_file(self, path: Path, number: int) -> Iterator[RecordedRequest]:
        try:
            with _open_trace(path) as file:
                text = file.read(SESSION_BYTES_MAX + 1)
            _check_length(text, SESSION_BYTES_MAX)
            yield from self._requests_of_session(_SESSIONS.decode(text), number)
        except FILE_ERRORS as error:
            raise TraceError(f"{path}: {error}") from error

    def _read_lines(self) -> Iterator[RecordedRequest]:
        number, sessions = 1, 0
        try:
            with _open_trace(self._path) as lines:
                line = _read_first_line(lines)
                while line:
                    if line.strip():
                        if not sessions:
                            self.format_name = _detect_format(line)
                        yield from self._requests_of_line(line, sessions)
                        sessions += 1
                    is_session = self.format_name == "Weka"
                    most = SESSION_BYTES_MAX if is_session else ROW_BYTES_MAX
                    # A size limit per line: a file without line ends must not fill the memory.
                    line = lines.readline(most + 1)
                    number += 1
                    _check_length(line, most)
        except FILE_ERRORS as error:
            raise TraceError(f"{self._path}, line {number}: {error}") from error

    def _requests_of_line(self, line: bytes, number: int) -> Iterable[RecordedRequest]:
        match self.format_name:
            case "Weka":
                return self._requests_of_session(_SESSIONS.decode(line), number)
            case "Bailian":
                return [self._request_of_chat(_CHATS.decode(line))]
        return [_request_of_row(_ROWS.decode(line))]

    def _request_of_chat(self, row: BailianRow) -> RecordedRequest:
        # Sessions are chains of chats, and each chat names only the chat before.
        first = self._chats.get(row.parent_chat_id, row.chat_id)
        if len(self._chats) < CHATS_MAX:
            self._chats[row.chat_id] = first
        keys = _make_keys(row.hash_ids, row.input_length, BAILIAN_BLOCK_TOKENS)
        return RecordedRequest(
            row.timestamp,
            max(1, row.input_length),
            row.output_length,
            keys,
            BAILIAN_BLOCK_TOKENS,
            first,
        )

    def _requests_of_session(self, trace: WekaSession, number: int) -> list[RecordedRequest]:
        """number: place of the session in the trace"""
        # Equal ids of different sessions mean different blocks, unless ids are global.
        scope = 0 if trace.hash_id_scope == "global" else number + 1
        found = []
        for start_s, call, session in self._calls_of(trace.requests, 0.0):
            keys = _make_keys(call.hash_ids, call.input_tokens, trace.block_size, scope)
            found.append(
                RecordedRequest(
                    number * SESSION_GAP_S + start_s + call.t,
                    max(1, call.input_tokens),
                    call.output_tokens,
                    keys,
                    trace.block_size,
                    session,
                )
            )
        return sorted(found, key=lambda each: each.at_s)

    def _calls_of(
        self, entries: Sequence[WekaEntry], start_s: float
    ) -> Iterator[tuple[float, WekaCall, int]]:
        """Yield the calls of an agent and all subagents, with the origin of the times.

        start_s: origin of the agent's times
        """
        session, self._sessions = self._sessions, self._sessions + 1
        subagents = [each for each in entries if isinstance(each, WekaSubagent) and each.requests]
        # Some recorders count a subagent's times from its start, others from the session's.
        is_relative = any(each.requests[0].t < each.t - ORIGIN_S for each in subagents)
        for each in entries:
            if isinstance(each, WekaSubagent):
                origin_s = start_s + each.t if is_relative else start_s
                yield from self._calls_of(each.requests, origin_s)
            else:
                yield start_s, each, session


_ROWS = msgspec.json.Decoder(MooncakeRow)
_CHATS = msgspec.json.Decoder(BailianRow)
_SESSIONS = msgspec.json.Decoder(WekaSession)
_OBJECTS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _has_one_session(path: Path) -> bool:
    return path.name.endswith((".json", ".json.gz"))


def _open_trace(path: Path) -> BinaryIO:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _read_first_line(lines: BinaryIO) -> bytes:
    line = lines.readline(ROW_BYTES_MAX + 1)
    if len(line) > ROW_BYTES_MAX and b'"requests"' in line:
        line += lines.readline(SESSION_BYTES_MAX + 1 - len(line))
        _check_length(line, SESSION_BYTES_MAX)
    else:
        _check_length(line, ROW_BYTES_MAX)
    return line


def _check_length(text: bytes, most: int) -> None:
    if len(text) > most:
        raise ValueError(f"expected at most {most} bytes for a request or session")


def _detect_format(line: bytes) -> str:
    """Return the name of the format of a line.  Raises ValueError."""
    fields = _OBJECTS.decode(line).keys()
    if "requests" in fields:
        return "Weka"
    if "hash_ids" not in fields:
        raise ValueError(
            "expected a request of a Mooncake or Bailian trace, with `hash_ids`, or a Weka "
            "session, with `requests`"
        )
    return "Bailian" if "chat_id" in fields else "Mooncake"


def _request_of_row(row: MooncakeRow) -> RecordedRequest:
    if not row.hash_ids:
        raise ValueError("`hash_ids` is empty: expected one id for each 512 tokens")
    tokens = row.input_length
    if tokens is None:
        tokens = len(row.hash_ids) * MOONCAKE_BLOCK_TOKENS
    keys = _make_keys(row.hash_ids, tokens, MOONCAKE_BLOCK_TOKENS)
    return RecordedRequest(
        row.timestamp / 1000.0, max(1, tokens), row.output_length, keys, MOONCAKE_BLOCK_TOKENS
    )


def _make_keys(ids: Sequence[int], tokens: int, block_tokens: int, scope: int = 0) -> Sequence[int]:
    """Return a key for each block, which identifies the block with all blocks before.

    scope: number of the ids' name space.  Raises ValueError for too many ids.
    """
    if len(ids) > -(-tokens // block_tokens):
        raise ValueError(
            f"`hash_ids`: expected at most one id for each {block_tokens} of {tokens} tokens, "
            f"got {len(ids)}"
        )
    keys, key = array("Q"), scope
    for each in ids:
        # Hashes of numbers are equal in all processes, unlike hashes of text.
        key = hash((key, each)) & KEY_MASK
        keys.append(key)
    return keys
