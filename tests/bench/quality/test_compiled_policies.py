"""Tests of the compiled policies against the rule in Python: equal states give equal costs."""

import numpy as np
import pytest

from scripts.bench.quality.generated_workloads import KINDS, make_workload
from scripts.bench.quality.work_rule import LEAST_WORK, REPORTED_MIN, WORK, WorkRouter
from select_service.core.placement.router_config import RouterConfig
from select_service.sim.engine.core_router import CoreRouter, CoreScene, SelectorUsage
from select_service.sim.engine.gpu_hardware import BLOCK_TOKENS, EQUAL, KV_BYTES, MIXED
from select_service.sim.engine.replay_world import ReplayWorld

REQUESTS = 120
PROMPT_BLOCKS_MAX = 200
"""Largest number of blocks of a prompt of the `tenants` workload, including its answer."""
STRICT = WORK._replace(r_scale=64.0, u_max=32_768.0, decode=0.1, memory=0.0)
DECODE = WORK._replace(booked=0.8, r_scale=16.0, r_max=8.0, per_request=128.0, decode=0.03)
COPIES = WORK._replace(copy=0.5)
RULES = {
    ("work", ()): WORK,
    ("work", ("no-memory",)): WORK._replace(memory=0.0),
    ("work", ("no-memory", "decode-sensitive")): DECODE._replace(memory=0.0),
    ("work", ("no-memory", "strict-tail")): STRICT,
    ("work", ("copy-price",)): COPIES,
    ("work", ("decode-sensitive", "copy-price")): DECODE._replace(copy=0.5),
    ("least_work", ()): LEAST_WORK,
}


class Twins(WorkRouter):
    """Router in which the core chooses and books, and the Python rule computes all costs.

    The rule keeps its own account of work.
    """

    def __init__(self, scene, rule, setting, config):
        super().__init__(scene, rule, setting, config)
        self.compared = self.with_work_left = self.with_progress = self.short_of_memory = 0
        self.with_copies = 0

    def choose(self, ask, now):
        read = self.read_prompt(ask)
        costs = self.costs_of(read)
        compiled = self.partition.placer.scratch.costs[: len(costs.cost)]
        np.testing.assert_allclose(compiled, costs.cost, rtol=1e-12)
        self.announce_prompt(read, costs)
        rank = CoreRouter.choose(self, ask, now)
        assert costs.cost[rank] == pytest.approx(min(costs.cost), rel=1e-12)
        self.compared += 1
        self.with_work_left += any(slot.left > 0 for slot in costs.slots)
        self.with_copies += any(slot.copied > 0 for slot in costs.slots)
        self.short_of_memory += any(slot.live > 0.95 * slot.memory for slot in costs.slots)
        self.with_progress += any(
            self.account.finished_work(rank) > 0 for rank in range(len(costs.cost))
        )
        return rank


def compare(workload, fleet, per_s, policy, options, reports):
    """Run `REQUESTS` requests with a comparison of costs before each, and return the router."""
    made_of = make_workload(KINDS[workload], 5, REQUESTS)
    world = ReplayWorld(made_of, fleet)
    config = RouterConfig(policy=policy, policy_options=options)
    scene, setting = CoreScene(fleet, made_of.n_blocks, 5), SelectorUsage(reports=reports)
    chooser = Twins(scene, RULES[policy, options], setting, config)
    record = world.run_open(chooser, per_s)
    assert chooser.compared == len(record.histories) >= REQUESTS
    return chooser


@pytest.mark.parametrize(("policy", "options"), RULES)
def test_the_compiled_policy_chooses_as_the_rule_does(policy, options):
    chooser = compare("mixed lengths", EQUAL, 14.0, policy, options, True)
    assert chooser.with_work_left > REQUESTS / 10
    assert chooser.with_progress > REQUESTS / 20


def test_the_compiled_policy_follows_the_rule_with_declared_speeds():
    made_of = make_workload(KINDS["mixed lengths"], 5, REQUESTS)
    world, scene = ReplayWorld(made_of, MIXED), CoreScene(MIXED, made_of.n_blocks, 5)
    rule, setting = WORK._replace(speeds=True), SelectorUsage(speeds=True)
    chooser = Twins(scene, rule, setting, RouterConfig(policy="work"))
    world.run_open(chooser, 20.0)
    assert chooser.compared >= REQUESTS


@pytest.mark.parametrize("policy", ["work", "least_work"])
def test_the_compiled_policy_follows_the_rule_without_reports(policy):
    chooser = compare("tenants", EQUAL, 20.0, policy, (), False)
    assert chooser.account.reported < REPORTED_MIN


def short_of_memory(prompts):
    """Return a rank of the equal fleet with a cache for `prompts` of the longest prompts."""
    places = prompts * PROMPT_BLOCKS_MAX
    short = EQUAL[0].memory - (EQUAL[0].kv_blocks - places) * KV_BYTES * BLOCK_TOKENS / 0.9
    return EQUAL[0]._replace(memory=short)


def test_the_compiled_policy_follows_the_rule_when_memory_is_short():
    chooser = compare("tenants", (short_of_memory(2),) * 3, 6.0, "work", (), True)
    assert chooser.short_of_memory > REQUESTS / 10


def test_the_compiled_policy_follows_the_rule_with_copy_prices():
    chooser = compare("tenants", (short_of_memory(4),) * 3, 6.0, "work", ("copy-price",), True)
    assert chooser.with_copies > REQUESTS / 10


def test_the_compiled_policy_follows_the_rule_on_mixed_hardware():
    chooser = compare("agents", MIXED, 1.5, "work", (), True)
    assert chooser.with_progress > 0
