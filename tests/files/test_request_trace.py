"""Tests of traces in three formats: times, lengths, sessions, equal prefixes and refused files."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.files import request_trace
from select_service.files.request_trace import (
    SESSION_GAP_S,
    RecordedRequest,
    TraceError,
    TraceReader,
    load_trace,
)
from tests.builders.hypothesis_profiles import explores
from tests.builders.request_traces import call, chat, session, subagent, write_lines

MOST = 1000


def shared_blocks(one: RecordedRequest, other: RecordedRequest) -> int:
    pairs = zip(one.keys, other.keys, strict=False)
    return next(
        (n for n, (a, b) in enumerate(pairs) if a != b), min(len(one.keys), len(other.keys))
    )


def test_a_bailian_trace_has_seconds_and_blocks_of_16_tokens(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "qwen_traceA_blksz_16.jsonl",
        chat(159, -1, 61.114, [7, 8, 9]),
        chat(160, 159, 75.5, [7, 8, 9, 10]),
        chat(161, 160, 70.0, [7, 8, 11]),
        chat(162, -1, 80.0, [8, 9]),
    )
    trace = load_trace(path, MOST)
    first, third, second, other = trace.requests
    assert trace.format_name == "Bailian"
    assert [each.at_s for each in trace.requests] == [61.114, 70.0, 75.5, 80.0]
    assert (first.prompt_tokens, first.output_tokens, first.key_tokens) == (40, 40, 16)
    assert [each.session for each in trace.requests] == [159, 159, 159, 162]
    assert [shared_blocks(first, each) for each in (second, third, other)] == [3, 2, 0]


def test_a_mooncake_trace_has_milliseconds_and_blocks_of_512_tokens(tmp_path: Path) -> None:
    row = {"timestamp": 1500, "input_length": 700, "output_length": 3, "hash_ids": [1, 2]}
    whole = {"timestamp": 500, "output_length": 3, "hash_ids": [1, 3]}
    trace = load_trace(write_lines(tmp_path / "t.jsonl", row, whole), MOST)
    found = [(each.at_s, each.prompt_tokens, each.key_tokens) for each in trace.requests]
    assert (trace.format_name, found) == ("Mooncake", [(0.5, 1024, 512), (1.5, 700, 512)])
    assert [each.session for each in trace.requests] == [None, None]


@pytest.mark.parametrize("first_s", [0.25, 20.25])
def test_a_subagent_counts_from_its_start_or_that_of_the_session(
    tmp_path: Path, first_s: float
) -> None:
    work = subagent(20.0, call(first_s, [1, 5]), call(first_s + 2, [1, 5, 6], type="s"))
    given = session(call(0.0, [1, 2]), work, call(30.0, [1, 2, 3], type="s"))
    path = write_lines(tmp_path / "t.jsonl", given, session(call(0.0, [1, 2])))
    trace = load_trace(path, MOST)
    assert trace.format_name == "Weka"
    assert [(each.at_s, each.session) for each in trace.requests] == [
        (0.0, 0),
        (SESSION_GAP_S, 2),
        (20.25, 1),
        (22.25, 1),
        (30.0, 0),
    ]
    main, other, child, _, last = trace.requests
    assert (main.prompt_tokens, main.output_tokens, main.key_tokens) == (96, 20, 64)
    assert [shared_blocks(main, each) for each in (last, child, other)] == [2, 1, 0]


def test_global_ids_are_shared_by_sessions(tmp_path: Path) -> None:
    one, other = (session(call(0.0, [1, n]), hash_id_scope="global") for n in (2, 3))
    first, second = load_trace(write_lines(tmp_path / "t.jsonl", one, other), MOST).requests
    assert shared_blocks(first, second) == 1


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "folder", "trace.jsonl"])
def test_a_session_may_be_a_file_on_many_lines_or_one_of_a_folder(
    tmp_path: Path, name: str
) -> None:
    given = session(call(0.0, [1]), {**call(1.0, []), "in": 10, "hash_ids": []})
    text = json.dumps(given, indent=None if name.endswith("jsonl") else 2).encode()
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
        (path / "b.json").write_bytes(text)
        (path / "a.json.gz").write_bytes(gzip.compress(text))
        (path / "README.md").write_text("no trace")
    else:
        path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    found = load_trace(path, MOST).requests
    assert len(found) == (4 if name == "folder" else 2)
    assert (found[-1].prompt_tokens, len(found[-1].keys)) == (10, 0)


def without(row: dict[str, Any], field: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != field}


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([[]], "line 1: Expected `object`, got `array`"),
        ([{"text": "hello"}], "line 1: expected a request of a Mooncake or Bailian trace"),
        ([chat(1, -1, 0, [1]), chat(2, -1, 0, [1], input_length="9")], "line 2: .*input_length"),
        ([chat(1, -1, -1.0, [1])], r"line 1: Expected `float` >= 0.0 - at `\$.timestamp`"),
        ([chat(1, -1, 0, [1, -2])], r"line 1: Expected `int` >= 0 - at `\$.hash_ids\[1\]`"),
        ([without(chat(1, -1, 0, [1]), "parent_chat_id")], "required field `parent_chat_id`"),
        ([chat(1, -1, 0, [1, 2, 3], input_length=32)], "one id for each 16 of 32 tokens, got 3"),
        ([chat(1, -1, 0, [1], output_length=1 << 30)], "Expected `int` <= 16777216"),
        (
            [session(call(0, [1]), block_size=0)],
            r"line 1: Expected `int` >= 1 - at `\$.block_size`",
        ),
        ([session(call(0, [1])), session(call(0, [1], type="x"))], "line 2: Invalid value 'x'"),
        ([session(without(call(0, [1]), "in"))], r"required field `in` - at `\$.requests\[0\]`"),
        (
            [session(call(0, [1]), hash_id_scope="odd")],
            r"Invalid enum value 'odd' - at `\$.hash_id",
        ),
        ([session(call(0, [1, 2], **{"in": 64}))], "one id for each 64 of 64 tokens, got 2"),
        ([session()], "the trace has no requests"),
    ],
)
def test_errors_name_the_file_the_line_and_the_field(
    tmp_path: Path, rows: list[object], reason: str
) -> None:
    path = write_lines(tmp_path / "t.jsonl", *rows)
    with pytest.raises(TraceError, match=reason) as caught:
        load_trace(path, MOST)
    assert str(caught.value).startswith(str(path))


def test_a_folder_without_sessions_and_a_file_that_is_cut(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"expected Weka sessions, files \*.json"):
        load_trace(tmp_path, MOST)
    path = tmp_path / "t.json"
    path.write_text(json.dumps(session(call(0.0, [1])))[:-9])
    with pytest.raises(TraceError, match="truncated"):
        load_trace(path, MOST)
    with pytest.raises(FileNotFoundError):
        load_trace(tmp_path / "none.jsonl", MOST)


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [chat(n, n - 1, n, list(range(10))) for n in range(20)]
    path = write_lines(tmp_path / "t.jsonl", *rows)
    monkeypatch.setattr(request_trace, "KEYS_MAX", 55)
    assert len(load_trace(path, 5).requests) == 5
    with pytest.raises(TraceError, match="first 6 requests have more than 55 blocks"):
        load_trace(path, MOST)
    monkeypatch.setattr(request_trace, "CHATS_MAX", 3)
    sessions = [each.session for each in TraceReader(path).read_requests()]
    assert sessions == [0, 0, 0, 0, *range(4, 20)]
    monkeypatch.setattr(request_trace, "ROW_BYTES_MAX", 150)
    with pytest.raises(TraceError, match="line 1: expected at most 150 bytes"):
        load_trace(path, MOST)
    long = write_lines(tmp_path / "long.jsonl", session(call(0.0, [1])), session(call(0.0, [1])))
    assert len(load_trace(long, MOST).requests) == 2
    monkeypatch.setattr(request_trace, "SESSION_BYTES_MAX", 200)
    with pytest.raises(TraceError, match="line 1: expected at most 200 bytes"):
        load_trace(long, MOST)


@explores()
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=2, max_size=6))
def test_keys_are_equal_where_beginnings_are(chains: list[list[int]]) -> None:
    """An id names only content: an equal id behind another prefix is another block."""
    keys = [request_trace._make_keys(ids, 16 * len(ids), 16) for ids in chains]
    for one, own in zip(chains, keys, strict=True):
        for other, theirs in zip(chains, keys, strict=True):
            for n in range(min(len(one), len(other))):
                assert (own[n] == theirs[n]) == (one[: n + 1] == other[: n + 1])
