"""Tests of a simulated engine: every token is computed once, and all memory is released."""

import numpy as np
import pytest

from select_service.sim.engine.gpu_hardware import A100_40, BLOCK_TOKENS, H100_80, KV_BYTES
from select_service.sim.engine.scheduler_engine import EngineJob, SchedulerEngine

SMALL = A100_40._replace(
    name="small", memory=A100_40.memory - (A100_40.kv_blocks - 60) * KV_BYTES * BLOCK_TOKENS / 0.9
)
N_BLOCKS = 4000


def jobs(n, shared=2, prompt=700, output=90):
    """Return `n` jobs that share their first blocks, with prompts of about `prompt` tokens."""
    found, block = [], shared
    for number in range(n):
        tokens, answer = prompt + 37 * (number % 5), output + number % 7
        own = (tokens + answer) // BLOCK_TOKENS - shared
        chain = np.array([*range(shared), *range(block, block + own)], np.int32)
        block += own
        found.append(EngineJob(number, chain, tokens, answer))
    return found


def run(engine, arriving, together=4):
    """Run `arriving` in groups of `together` jobs, each group after the previous group.

    Return the seconds and the progress of all stretches.
    """
    seconds, progress = 0.0, []
    while arriving:
        for job in arriving[:together]:
            engine.add_job(job)
        arriving = arriving[together:]
        while (stretch := engine.plan_stretch()) is not None:
            assert stretch > 0.0
            seconds += stretch
            progress.append(engine.complete_stretch())
            engine.check_invariants()
    return seconds, progress


def of(progress, what):
    return [job.number for step in progress for job in getattr(step, what)]


def test_every_token_is_computed_once():
    engine, given = SchedulerEngine(A100_40, N_BLOCKS), jobs(40)
    _, progress = run(engine, list(given))
    assert sorted(of(progress, "first_tokens")) == sorted(of(progress, "finished")) == [*range(40)]
    assert engine.work.preemptions == 0
    assert engine.work.prompt_tokens == sum(job.prompt_tokens - job.cached for job in given)
    assert engine.work.output_tokens == sum(job.output_tokens for job in given)


def test_blocks_of_answers_are_reported():
    engine, given = SchedulerEngine(A100_40, N_BLOCKS), jobs(3, output=200)
    _, progress = run(engine, list(given))
    filled = of(progress, "blocks")
    for job in given:
        full = (job.prompt_tokens + job.output_tokens) // BLOCK_TOKENS
        assert 1 <= filled.count(job.number) <= full - job.prompt_tokens // BLOCK_TOKENS


def test_nothing_is_held_at_the_end_and_answers_are_cached():
    engine, given = SchedulerEngine(A100_40, N_BLOCKS), jobs(6)
    run(engine, list(given))
    everything = {int(block) for job in given for block in job.chain}
    assert engine.pool.cached_blocks() == everything
    assert engine.pool.has_room(engine.pool.places, np.empty(0, np.int32))


def test_without_memory_requests_begin_anew_and_still_end():
    engine, given = SchedulerEngine(SMALL, N_BLOCKS), jobs(30, output=300)
    _, progress = run(engine, list(given), together=10)
    assert SMALL.kv_blocks == pytest.approx(60, abs=1)
    assert engine.work.preemptions > 0
    assert sorted(of(progress, "finished")) == [*range(30)]
    assert len(of(progress, "first_tokens")) == 30
    once = sum(job.prompt_tokens - job.cached for job in given)
    assert once <= engine.work.prompt_tokens <= once + engine.work.lost_tokens
    outputs = sum(job.output_tokens for job in given)
    assert outputs <= engine.work.output_tokens <= outputs + engine.work.preemptions


def test_a_prompt_that_is_there_computes_its_last_token():
    engine = SchedulerEngine(A100_40, N_BLOCKS)
    first, again = (EngineJob(n, np.arange(10, dtype=np.int32), 640, 1) for n in range(2))
    run(engine, [first])
    run(engine, [again])
    assert (first.cached, again.cached) == (0, 640 - BLOCK_TOKENS)


def test_a_long_prompt_is_computed_in_chunks_beside_answers():
    engine = SchedulerEngine(A100_40, N_BLOCKS)
    short = EngineJob(0, np.arange(20, dtype=np.int32), 100, 500)
    long = EngineJob(1, np.arange(100, 260, dtype=np.int32), 10_000, 1)
    engine.add_job(short)
    engine.plan_stretch()
    engine.complete_stretch()
    engine.add_job(long)
    steps = 0
    while long.generated == 0:
        engine.plan_stretch()
        engine.complete_stretch()
        steps += 1
    assert steps == -(-10_000 // (A100_40.batch_tokens - 1))
    assert short.generated + (engine._iteration - short.since) >= steps


def test_a_stretch_ends_with_the_step_of_an_arrival():
    engine = SchedulerEngine(A100_40, N_BLOCKS)
    engine.add_job(EngineJob(0, np.arange(8, dtype=np.int32), 130, 400))
    engine.plan_stretch()
    engine.complete_stretch()
    whole = engine.plan_stretch()
    one = engine.cut_stretch(0.0)
    assert 0.0 < one < whole
    engine.complete_stretch()
    assert engine.work.output_tokens == 2


def test_capacity_of_the_hardware_is_that_of_its_data_sheet():
    """8 billion parameters give about 10,000 tokens/s and a cache of about 100,000 tokens."""
    assert 9_000 < A100_40.prefill_tokens_per_s < 10_000
    assert 20_000 < H100_80.prefill_tokens_per_s < 26_000
    assert 120_000 < A100_40.kv_blocks * BLOCK_TOKENS < 150_000
    assert 0.015 < A100_40.step_s(0, 0.0, 1) < 0.02
