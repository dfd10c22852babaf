"""Tests of replicas removed by health: lost, and replaced within the budget, one at a time."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.planner.core.reasons import Reason
from select_service.planner.core.replicas.lost_capacity import split_reading
from select_service.planner.core.tick_input import RoleHealth, RoleReplicas
from tests.planner.core.lost_world import STARTUP_S, D, LostWorld

KINDS = pytest.mark.parametrize("is_virtual", [False, True], ids=["kubernetes", "virtual"])


def a_world(is_virtual, **settings):
    world = LostWorld(0, is_virtual=is_virtual, **settings)
    world.run(600)
    return world


@KINDS
def test_a_lost_replica_is_a_column_of_its_own_and_another_starts_at_once(is_virtual):
    world = a_world(is_virtual)
    before = world.spec
    assert len(world.serving) == before
    world.fail(world.serving[0])
    world.tick()
    found = world.effects.diagnostics.roles[D]
    assert (found.ready, found.starting, found.lost) == (before - 1, 0, 1)
    assert found.lost_workers == (world.lost[0].worker_id,)
    assert Reason.CAPACITY_LOST in world.effects.diagnostics.reasons
    assert world.spec == before + 1, "the lost replica keeps its place, and another one starts"
    world.run(STARTUP_S + 10)
    assert len(world.serving) == before


@KINDS
def test_load_scaling_goes_on_beside_a_lost_replica(is_virtual):
    world = a_world(is_virtual, max_gpu_budget=4, replace_after_s=1e6)
    world.run(60)
    world.fail(world.serving[0])
    before = world.mismatches
    world.run(300)
    assert world.mismatches == before
    assert world.effects.diagnostics.load_reason is not None
    assert world.effects.diagnostics.load_reason is not Reason.SCALING_IN_PROGRESS


@KINDS
def test_without_room_in_the_budget_the_lost_replica_is_replaced_in_its_place(is_virtual):
    world = a_world(is_virtual)
    world = LostWorld(0, is_virtual=is_virtual, start=4, max_gpu_budget=world.spec)
    world.run(600)
    before = world.spec
    world.fail(world.serving[0])
    sick = world.lost[0].worker_id
    world.run(100)
    assert (world.spec, world.replaced) == (before, [])
    world.run(60)
    assert (world.spec, world.replaced) == (before, [sick])
    world.run(STARTUP_S + 10)
    assert len(world.serving) == before


def test_the_document_profile_ignores_lost_replicas():
    world = LostWorld(0, is_virtual=False, replace_lost=False)
    world.run(600)
    before = world.spec
    world.fail(world.serving[0])
    world.run(300)
    found = world.effects.diagnostics.roles[D]
    assert (found.ready, found.lost, world.spec, world.replaced) == (before, 0, before, [])


@KINDS
def test_a_replacement_that_the_platform_refuses_leaves_the_replica_lost(is_virtual):
    world = a_world(is_virtual)
    world.fail(world.serving[0])
    asked = []

    def refuse(worker_id):
        asked.append((world.now, worker_id))
        world.deployment.undo_replacement((worker_id,))

    world.replace = refuse
    world.run(400)
    assert world.effects.diagnostics.roles[D].lost == 1
    times = [at for at, _ in asked]
    assert len(asked) >= 3
    assert min(b - a for a, b in pairwise(times)) >= 60


@KINDS
def test_a_replica_that_returns_by_itself_is_no_longer_lost(is_virtual):
    world = a_world(is_virtual)
    before = world.spec
    sick = world.serving[0]
    world.fail(sick)
    world.run(STARTUP_S + 20)
    sick.lost_at = None
    world.run(30)
    assert world.effects.diagnostics.roles[D].lost == 0
    world.run(900)
    # One of eleven is within the stabiliser's tolerance, and may stay.
    assert before <= world.spec <= before + 1
    assert (len(world.serving), world.replaced) == (world.spec, [])


def play(seed):
    """Return the world after forty minutes of failures and half an hour without, and its counts."""
    world = LostWorld(
        seed,
        is_virtual=bool(seed % 2),
        kv_tokens=800_000,
        optimization_target="load",
        enable_throughput_scaling=False,
        max_gpu_budget=(5, 8, 16)[seed % 3],
    )
    world.run(200)
    rng, failures = world.rng, 0
    least = world.deployment.settings.min_endpoint
    for _ in range(240):
        world.run(10)
        serving = world.serving
        if len(serving) > least and rng.random() < 0.02:
            world.fail(rng.choice(serving))
            failures += 1
        for replica in world.lost:
            if rng.random() < 0.01:
                replica.lost_at = None
    changes = len(world.changes)
    world.run(1800)
    return world, failures, changes


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_no_seed_oscillates_or_replaces_twice(first):
    """The world itself asserts that only lost replicas go, one at a time and within the budget."""
    for seed in range(first, first + 20):
        world, failures, _ = play(seed)
        assert len(world.replaced) == len(set(world.replaced)), seed
        assert len(world.replaced) <= failures, seed
        assert world.reversals <= 2 * failures + 2, (seed, failures, world.changes)
        assert not world.lost, seed
        assert len(world.serving) == world.spec <= world.budget, seed
        quiet = [at for at, _ in world.changes if at > world.now - 900]
        assert not quiet, (seed, world.changes)


COUNTS = st.integers(0, 6)


@given(serving=COUNTS, starting=COUNTS, lost=COUNTS, spares=COUNTS, is_virtual=st.booleans())
def test_a_reading_is_split_for_any_count_of_ready_replicas(
    serving, starting, lost, spares, is_virtual
):
    """Every replica is counted in exactly one column."""
    total = serving + starting + lost + spares
    ready = serving if is_virtual else serving + lost + spares
    found = RoleReplicas(ready=ready, expected=total, pending=total - ready)
    split = split_reading(found, RoleHealth(serving=serving, spares=spares), lost)
    assert split.lost == lost
    assert split.replicas.ready == serving + spares
    assert split.replicas.expected == total - lost
    assert split.replicas.pending == starting


def test_before_any_decision_lost_workers_have_a_replica():
    found = RoleReplicas(ready=2)
    split = split_reading(found, RoleHealth(serving=2), 1)
    assert (split.lost, split.replicas) == (1, found)


@given(serving=COUNTS, lost=COUNTS)
def test_workers_without_a_replica_are_no_lost_replicas(serving, lost):
    found = RoleReplicas(ready=serving, expected=serving)
    split = split_reading(found, RoleHealth(serving=serving), lost)
    assert (split.lost, split.replicas) == (0, found)
