"""Tests with recordings of two versions of vLLM: the index returns reusable tokens, or a bound."""

import pytest

from tests.indexer.events.test_recorded_groups import (
    DIRECTORY,
    ReplayedRank,
    assert_empty,
    play_with_restarts,
    read_compact,
)

RECORDINGS = sorted(
    str(path.relative_to(DIRECTORY)).removesuffix(".jsonl.xz")
    for path in DIRECTORY.glob("vllm-*/*.jsonl.xz")
)
BOUNDED = {
    "vllm-0.33.0/ahead_deepseek_v4",
    "vllm-0.33.0/drop_and_finer_window",
    "vllm-0.33.0/drop_and_state_inside_blocks",
    "vllm-0.33.0/drop_deepseek_v4",
    "vllm-0.33.0/state_inside_blocks_528",
    "vllm-0.33.0/state_inside_blocks_adapters",
    "vllm-0.33.0/state_inside_blocks_salted",
}
"""Recordings with answers that may be marked as upper bounds."""
OTHER_RULE = {"vllm-0.23.0/drop_and_state", "vllm-0.23.0/drop_and_window"}
"""Recordings in which drafts drop blocks of several groups by another rule than vLLM 0.33's.
"""
BY_RULE = sorted(set(RECORDINGS) - OTHER_RULE)


def faults_of(replayed):
    """Return answers that are wrong or, marked as upper bounds, below the engine's reuse."""
    return [
        (tokens, is_bound, reused)
        for tokens, is_bound, reused in replayed.answers
        if tokens < reused or (tokens != reused and not is_bound)
    ]


def test_both_versions_are_recorded():
    versions = [name.partition("/")[0] for name in RECORDINGS]
    assert (versions.count("vllm-0.33.0"), versions.count("vllm-0.23.0")) == (67, 32)


@pytest.mark.parametrize("recording", BY_RULE)
def test_answers_are_exact_or_upper_bounds(recording):
    replayed = ReplayedRank(recording)
    replayed.play(replayed.rows)
    assert faults_of(replayed) == []
    assert sum(reused for *_, reused in replayed.answers) > 1000
    if recording not in BOUNDED:
        assert not any(is_bound for _, is_bound, _ in replayed.answers)
    replayed.remove_everything()
    assert_empty(replayed.rank)


@pytest.mark.parametrize("recording", BY_RULE)
def test_restarts_from_compact_dumps_change_no_answer(recording):
    without, replayed = ReplayedRank(recording), ReplayedRank(recording)
    without.play(without.rows)
    play_with_restarts(replayed, read_compact)
    assert replayed.answers == without.answers


def test_a_later_prompt_proves_names_if_the_first_ones_are_shorter_than_a_block():
    """Only answers before the first whole block are bounds."""
    replayed = ReplayedRank("vllm-0.33.0/state_inside_blocks_528")
    replayed.play(replayed.rows)
    bounds = [is_bound for _, is_bound, _ in replayed.answers]
    assert not any(bounds[3:])


@pytest.mark.parametrize("recording", sorted(OTHER_RULE))
@pytest.mark.parametrize("knows_drop", [True, False])
def test_answers_under_another_rule_are_upper_bounds(recording, knows_drop):
    """The registration declares the drop, or only that the engine speculates."""
    replayed = ReplayedRank(recording, knows_drop=knows_drop)
    replayed.play(replayed.rows)
    assert faults_of(replayed) == []
    assert all(is_bound for tokens, is_bound, reused in replayed.answers if tokens != reused)
