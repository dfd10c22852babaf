"""Tests of the workload that is rebuilt from a log."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.sim.engine.block_streams import ReplayRequest, ReplayWorkload
from select_service.sim.engine.gpu_hardware import A100_40, BLOCK_TOKENS, EQUAL
from select_service.sim.engine.replay_world import ReplayWorld
from select_service.sim.replay.decision_log_reader import (
    LogFilter,
    ReplayError,
    read_logs,
)
from select_service.sim.replay.recorded_workload import (
    CELLS_MAX,
    OUTPUT_TOKENS,
    ReplayAssumptions,
    _make_requests,
    make_fleet,
    make_workload,
    recorded_requests,
)
from select_service.sim.replay.replay_report import compute_figures
from tests.builders.hypothesis_profiles import explores
from tests.builders.simulated_engines import BlockNumbers, TextStream
from tests.sim.replay.log_lines import a_decision, a_fleet, turns_as_decisions, write

ANY = LogFilter(None, None, 1000)
GIVEN = ReplayAssumptions(A100_40)


def workload_of(fleet, decisions, speed=1.0):
    return make_workload(recorded_requests(decisions), make_fleet(fleet, GIVEN), speed)


def conversations(n_sessions, n_turns, seed):
    """Return (turns, starts), sorted by start, of conversations with shared prefixes."""
    rng, blocks = np.random.default_rng(seed), BlockNumbers()
    found = []
    for session in range(n_sessions):
        stream = TextStream(blocks).append_shared(session % 3, 4 * BLOCK_TOKENS)
        start = float(rng.uniform(0, 5))
        for _ in range(n_turns):
            turn = stream.append_unique(int(rng.integers(70, 400))).make_request(
                int(rng.integers(1, 300))
            )
            found.append((start, turn))
            start += float(rng.uniform(0.1, 20))
    found.sort(key=lambda each: each[0])
    return [turn for _, turn in found], [start for start, _ in found]


def test_a_replay_of_a_log_is_the_run_of_the_workload_that_was_logged():
    """A log lacks answers that no later prompt contains, without an effect on the result."""
    from select_service.sim.engine.core_router import CoreScene
    from select_service.sim.replay.policy_replay_command import make_router

    turns, at = conversations(20, 4, seed=3)
    own = ReplayWorkload(
        tuple((turn,) for turn in turns),
        np.array(at) - at[0],
        1 + max(int(turn.chain.max()) for turn in turns),
    )
    logged = workload_of(a_fleet(8), turns_as_decisions(turns, at))
    for name in ("round-robin", "least-load", "work", "reference"):
        figures = [
            compute_figures(
                ReplayWorld(workload, EQUAL).run_open(
                    make_router(name, CoreScene(EQUAL, workload.n_blocks, 1)), 1.0
                )
            )
            for workload in (own, logged.workload)
        ]
        assert figures[0] == figures[1], name
        assert figures[0].hit_rate > 0.1


@explores()
@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 10**6))
def test_chains_are_those_that_were_logged_up_to_their_names(n_sessions, n_turns, seed):
    """Two prompts share as many blocks as in the log, as do answers of continued turns."""
    turns, at = conversations(n_sessions, n_turns, seed)
    decisions = turns_as_decisions(turns, at, seed)
    made, n_blocks = _make_requests(
        [turn.output_tokens for turn in turns], recorded_requests(decisions)
    )
    assert all(turn.chain.max() < n_blocks for turn in made)

    def shared(one: ReplayRequest, other: ReplayRequest) -> int:
        other_prompt = other.chain[: other.prompt_tokens // BLOCK_TOKENS]
        n = min(len(one.chain), len(other_prompt))
        same = one.chain[:n] == other_prompt[:n]
        return n if same.all() else int(np.argmin(same))

    for earlier in range(len(turns)):
        assert len(made[earlier].chain) == len(turns[earlier].chain)
        for later in range(earlier + 1, len(turns)):
            assert shared(made[earlier], made[later]) == shared(turns[earlier], turns[later])


@pytest.mark.parametrize(("block_size", "every"), [(16, 4), (32, 2), (48, 2), (64, 1), (128, 1)])
def test_prompts_share_the_blocks_of_whole_hashes(block_size, every):
    """Block sizes that are no multiple of the simulated size share only whole covered blocks."""
    covered = block_size * every
    hashes = np.arange(1, 6, dtype=np.uint64)
    other = hashes.copy()
    other[3:] += np.uint64(100)
    isl = 5 * covered + 10
    fields = {"block_size": block_size, "hash_blocks": every}
    one, two = (
        a_decision(number, 1.0, each, isl, 1, **fields)
        for number, each in enumerate((hashes, other))
    )
    (first, second), _ = _make_requests([1, 1], recorded_requests([one, two]))
    n = isl // BLOCK_TOKENS
    same = first.chain[:n] == second.chain[:n]
    assert same.sum() == 3 * covered // BLOCK_TOKENS
    assert same[: same.sum()].all()


def test_the_fleet_has_reported_facts_or_else_the_defaults():
    fleet = make_fleet(
        a_fleet(2, total_kv_blocks=4000, max_num_batched_tokens=512),
        GIVEN._replace(prefill_tokens_per_s=12_345.0),
    )
    assert [rank.kv_blocks for rank in fleet] == [1000, 1000]
    assert fleet[0].batch_tokens == 512
    assert fleet[0].prefill_tokens_per_s == pytest.approx(12_345.0)


def test_answers_without_a_length_are_as_long_as_the_median():
    decisions = [a_decision(n, 1.0, [], 100, output) for n, output in enumerate((5, 50, 500, None))]
    made = workload_of(a_fleet(), decisions)
    assert [turn.output_tokens for (turn,) in made.workload.sessions] == [5, 50, 500, 50]
    assert made.guessed_outputs == 1
    made = workload_of(a_fleet(), decisions[3:])
    assert made.workload.sessions[0][0].output_tokens == OUTPUT_TOKENS


def test_requests_that_fit_nowhere_are_left_out_and_too_much_is_refused():
    small = a_fleet(2, total_kv_blocks=64)
    decisions = [a_decision(n, 1.0, [], tokens, 10) for n, tokens in enumerate((100, 5000))]
    made = workload_of(small, decisions)
    assert (made.workload.requests, made.too_long) == (1, 1)
    with pytest.raises(ReplayError, match="no request fits"):
        workload_of(small, decisions[1:])
    ranks = a_fleet(1024, total_kv_blocks=10**9)
    large = [a_decision(1, 1.0, [], CELLS_MAX // 1024 * BLOCK_TOKENS + 64, 10)]
    with pytest.raises(ReplayError, match="fewer --requests"):
        workload_of(ranks, large)


def test_times_are_those_of_arrivals_and_can_be_stretched():
    decisions = [a_decision(1, 10.0, [], 100), a_decision(2, 14.0, [], 100, waited_s=2.0)]
    made = workload_of(a_fleet(), decisions, speed=4.0)
    assert made.workload.units.tolist() == [0.0, 0.5]


def test_the_last_requests_of_the_busiest_model_are_read(tmp_path):
    lines = [a_fleet(2), a_fleet(3, model="other")]
    lines += [a_decision(n, float(n), [], 100) for n in range(10)]
    lines += [a_decision(n, float(n), [], 100, model_name="other") for n in range(20, 25)]
    lines += [a_decision(30, 1.0, [], 100, reserved=False)]
    path = write(tmp_path / "log", lines)
    logged = read_logs([path], ANY._replace(requests=4))
    assert [each.decision for each in logged.decisions] == [6, 7, 8, 9]
    assert (len(logged.fleet.ranks), logged.unbooked) == (2, 1)
    other = read_logs([path], ANY._replace(model_name="other"))
    assert (len(other.fleet.ranks), len(other.decisions), other.unbooked) == (3, 5, 0)


def test_a_line_that_is_being_written_is_left_out(tmp_path):
    path = write(tmp_path / "log", [a_fleet(), *(a_decision(n, 1.0, [], 100) for n in range(3))])
    path.write_bytes(path.read_bytes()[:-20])
    assert len(read_logs([path], ANY).decisions) == 2


def test_a_deep_line_of_a_log_is_a_fault_of_the_file(tmp_path):
    path = tmp_path / "decisions.jsonl"
    path.write_bytes(b'{"other":' + b"[" * 5000 + b"\n")
    with pytest.raises(ReplayError, match="line 1"):
        read_logs([path], LogFilter(None, None, 10))
