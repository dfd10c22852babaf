"""Tests of the host tier: evicted device blocks stay loadable, so that prompts skip computing."""

import numpy as np
import pytest

from select_service.sim.engine.gpu_hardware import A100_40, BLOCK_TOKENS
from select_service.sim.engine.host_cache import HostCache
from select_service.sim.engine.scheduler_engine import EngineJob, SchedulerEngine

DEVICE = A100_40._replace(declared_blocks=60)
PROMPT = 40 * BLOCK_TOKENS


def chain(first):
    return np.arange(first, first + 41, dtype=np.int32)


def run(engine, number, first):
    """Run a job alone, and return the seconds to its first token and the job."""
    job = EngineJob(number, chain(first), PROMPT + 10, 8)
    engine.add_job(job)
    seconds = 0.0
    while (stretch := engine.plan_stretch()) is not None:
        seconds += 0.0 if job.decoding else stretch
        engine.complete_stretch()
        engine.check_invariants()
    return seconds, job


def run_pair(hardware):
    """Run a prompt, a second prompt that evicts the first, and the first prompt again."""
    engine = SchedulerEngine(hardware, 1000)
    cold, _ = run(engine, 0, 0)
    run(engine, 1, 500)
    again, job = run(engine, 2, 0)
    return engine, cold, again, job


def test_a_prompt_loads_evicted_blocks():
    _, cold, without, computed = run_pair(DEVICE)
    assert computed.cached < PROMPT
    engine, _, loaded, job = run_pair(DEVICE._replace(host_blocks=100))
    assert job.cached == PROMPT
    assert loaded < without < cold * 1.01
    assert len(engine.host) <= 100


def test_loading_takes_its_time():
    engine, _, loaded, _ = run_pair(DEVICE._replace(host_blocks=100))
    device = SchedulerEngine(DEVICE._replace(declared_blocks=200), 1000)
    run(device, 0, 0)
    present, _ = run(device, 1, 0)
    moved = loaded - present
    assert moved > 0.0
    assert moved == pytest.approx(
        round(moved / engine.hardware.host_load_s) * engine.hardware.host_load_s
    )
    assert moved <= PROMPT * engine.hardware.host_load_s


def test_loaded_blocks_are_announced_as_device_blocks():
    engine, _, _, _ = run_pair(DEVICE._replace(host_blocks=100))
    assert set(chain(0)[:40].tolist()) <= engine.pool.cached_blocks()


def test_the_least_recently_evicted_blocks_leave_first():
    host = HostCache(3)
    host.store_blocks(np.array([1, 2, 3], np.int32))
    host.store_blocks(np.array([1], np.int32))
    host.store_blocks(np.array([4], np.int32))
    assert [block in host for block in (1, 2, 3, 4)] == [True, False, True, True]
    assert len(host) == 3


def test_without_a_host_tier_nothing_changes():
    engine, _, _, _ = run_pair(DEVICE)
    assert engine.host is None
    assert engine._count_loadable(EngineJob(9, chain(0), PROMPT, 1), 7) == 7
