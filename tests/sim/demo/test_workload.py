"""Tests of the generated workload and the trace reader."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from select_service.files.request_trace import TraceError
from select_service.sim.demo.conversations import (
    ConversationWorkload,
    DemoConversation,
    WorkloadShape,
    generate_workload,
)
from select_service.sim.demo.trace_workload import OUTPUT_BLOCKS_MAX, read_trace

SHAPE = WorkloadShape(requests=100, block_size=16, ranks=4, seed=7)

TRACE = """\
{"timestamp": 0, "input_length": 1100, "output_length": 600, "hash_ids": [0, 1, 2]}
{"timestamp": 4000, "input_length": 1024, "output_length": 52, "hash_ids": [0, 1]}

{"timestamp": 2000, "input_length": 900, "output_length": 999999, "hash_ids": [9, 1]}
"""


def prompts(workload: ConversationWorkload) -> list[list[int]]:
    return [
        session.tokens[: turn.prompt_tokens].tolist()
        for session in workload.sessions
        for turn in session.turns
    ]


def turns(workload: ConversationWorkload) -> list[tuple[int, int, float, bytes]]:
    return [
        (turn.prompt_tokens, turn.output_tokens, turn.think_s, turn.chain.tobytes())
        for session in workload.sessions
        for turn in session.turns
    ]


def a_trace(folder: Path, text: str = TRACE, name: str = "trace.jsonl") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_equal_seeds_give_equal_workloads() -> None:
    one, other = generate_workload(SHAPE), generate_workload(SHAPE)
    assert prompts(one) == prompts(other)
    assert [s.start_s for s in one.sessions] == [s.start_s for s in other.sessions]
    assert turns(one) == turns(other)


def test_another_seed_gives_another_workload() -> None:
    assert prompts(generate_workload(SHAPE)) != prompts(generate_workload(SHAPE._replace(seed=8)))


def test_a_workload_has_the_requested_number_of_requests() -> None:
    assert generate_workload(SHAPE).requests == 100
    assert generate_workload(SHAPE._replace(requests=1)).requests == 1


def test_request_names_are_unique() -> None:
    names = [session.name for session in generate_workload(SHAPE._replace(requests=2000)).sessions]
    assert len(set(names)) == len(names)


def test_each_turn_includes_all_earlier_turns() -> None:
    workload = generate_workload(SHAPE)
    session = max(workload.sessions, key=lambda session: len(session.turns))
    assert len(session.turns) > 1
    for earlier, later in zip(session.turns, session.turns[1:], strict=False):
        answered = earlier.prompt_tokens + earlier.output_tokens
        assert later.prompt_tokens > answered
    last = session.turns[-1]
    assert len(session.tokens) == last.prompt_tokens + last.output_tokens


def test_conversations_share_system_prompts() -> None:
    first_blocks = [session.chain[0] for session in generate_workload(SHAPE).sessions]
    assert len(set(first_blocks)) < len(first_blocks)


def test_every_turn_has_all_its_full_blocks() -> None:
    workload = generate_workload(SHAPE)
    turns = [turn for session in workload.sessions for turn in session.turns]
    lengths = [turn.prompt_tokens + turn.output_tokens for turn in turns]
    assert [len(turn.chain) for turn in turns] == [each // SHAPE.block_size for each in lengths]
    assert workload.places_max == max(lengths) // SHAPE.block_size + 2


def test_equal_hash_ids_become_equal_blocks(tmp_path: Path) -> None:
    sessions = read_trace(a_trace(tmp_path), 16, None, speedup=1.0).sessions
    by_name = {session.name: session for session in sessions}
    first, second, other = by_name["t1"], by_name["t2"], by_name["t3"]
    assert first.turns[0].prompt_tokens == 48
    assert first.chain[:2].tolist() == second.chain[:2].tolist()
    assert first.chain[2] != second.chain[2]
    assert np.array_equal(first.tokens[:32], second.tokens[:32])
    assert first.chain[1] != other.chain[1]


def test_a_trace_arrives_in_order_of_time_and_faster_by_the_speedup(tmp_path: Path) -> None:
    sessions = read_trace(a_trace(tmp_path), 16, None, speedup=2.0).sessions
    assert [session.start_s for session in sessions] == [0.0, 1.0, 2.0]


def test_answers_of_a_trace_are_shrunk_like_its_prompts_and_bounded(tmp_path: Path) -> None:
    def blocks(session: DemoConversation) -> int:
        return session.turns[0].output_tokens // 16

    sessions = read_trace(a_trace(tmp_path), 16, None, speedup=1.0).sessions
    assert [blocks(session) for session in sessions] == [1, OUTPUT_BLOCKS_MAX, 1]


def test_a_trace_may_be_compressed_and_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(TRACE.encode()))
    assert read_trace(path, 16, 2, speedup=1.0).requests == 2


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no request"),
        ("garbage\n", "line 1"),
        (TRACE + '{"timestamp": 1}\n', "line 5"),
        ('{"timestamp": 1, "output_length": 1, "hash_ids": []}\n', "empty"),
        ('{"timestamp": -1, "output_length": 1, "hash_ids": [1]}\n', ">= 0.0 - at `\\$.timestamp`"),
    ],
)
def test_a_broken_trace_is_refused_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(TraceError, match=complaint):
        read_trace(a_trace(tmp_path, text), 16, None, speedup=1.0)


def test_a_file_that_is_not_gzip_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="line 1"):
        read_trace(a_trace(tmp_path, name="trace.jsonl.gz"), 16, None, speedup=1.0)
