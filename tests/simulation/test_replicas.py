"""Tests of replicas that agree after any network fault; no load outlives its request."""

import pytest

from indexer.sockets.socket_options import REACHED_S_MAX
from tests.simulation.world import World

AGREE_S = 45.0
"""Bound of docs/explanation/replication.md, in s: from the last fault to equal reservations."""
SEEDS = range(12)


def a_bad_time(world, seconds=60.0, restarts=0):
    """Run with loss, repeats, delays that reorder, and a temporary partition."""
    rng = world.rng
    network = world.network
    network.loss, network.repeat = rng.choice([0.0, 0.1, 0.3]), rng.choice([0.0, 0.1])
    network.delay_s = rng.choice([0.001, 0.05, 0.5])
    lonely = rng.randrange(len(world.nodes))
    others = [n for n in range(len(world.nodes)) if n != lonely]
    both_ways = {(lonely, n) for n in others} | {(n, lonely) for n in others}
    one_way = {(lonely, n) for n in others}
    world.at(seconds * 0.3, lambda: network.cut.update(rng.choice([both_ways, one_way])))
    world.at(seconds * rng.choice([0.6, 1.0]), network.cut.clear)
    for _ in range(restarts):
        number = rng.randrange(len(world.nodes))
        world.at(rng.uniform(0, seconds), lambda n=number: world.restart(n))
    world.arrivals(per_s=4, until_s=world.time + seconds, life_s=rng.choice([1.0, 10.0]))
    world.run(seconds)
    network.heal()


def until_agreed(world, bound_s=AGREE_S):
    """Return the seconds until all nodes hold the same reservations. Fail after the bound."""
    begin = world.time
    while not world.agree():
        assert world.time - begin < bound_s, (
            f"no agreement after {bound_s} s: {world.reservations_by_node()}"
        )
        world.run(0.5)
    return world.time - begin


def end_all(world):
    for name in list(world.running):
        world.end(name)


@pytest.mark.parametrize("seed", SEEDS)
def test_replicas_agree_after_the_network_heals(seed):
    world = World(seed)
    a_bad_time(world)
    until_agreed(world)
    world.check_invariants()


@pytest.mark.parametrize("seed", SEEDS)
def test_no_load_remains_when_all_requests_are_freed(seed):
    world = World(seed)
    a_bad_time(world)
    end_all(world)
    world.run(AGREE_S)
    assert world.reservations_by_node() == [{}] * 3
    world.check_invariants()


@pytest.mark.parametrize("seed", SEEDS)
def test_replicas_agree_although_processes_die_and_start_anew(seed):
    world = World(seed, n_nodes=4)
    a_bad_time(world, restarts=3)
    until_agreed(world)
    end_all(world)
    until_agreed(world)
    world.check_invariants()


@pytest.mark.parametrize("seed", SEEDS)
def test_replicas_agree_after_one_was_cut_off_and_two_died_however_late_each_link_is_back(seed):
    world = World(seed, n_nodes=3 + seed % 2)
    rng, network, numbers = world.rng, world.network, range(3 + seed % 2)
    lonely = rng.randrange(len(world.nodes))
    links = [{(lonely, n) for n in numbers}, {(n, lonely) for n in numbers}]
    links.append(links[0] | links[1])
    network.delay_s = rng.choice([0.001, 0.5])
    world.at(20.0, lambda: network.cut.update(rng.choice(links)))
    for number in rng.sample(numbers, 2):
        world.at(60.0 - rng.choice([0.0, 1.0, 15.0]), lambda n=number: world.restart(n))
    world.arrivals(per_s=4, until_s=60.0, life_s=rng.choice([1.0, 30.0]))
    world.run(60.0)
    network.delay_s = 0.001
    for link in list(network.cut):
        world.at(rng.uniform(0.0, REACHED_S_MAX), lambda link=link: network.cut.discard(link))
    until_agreed(world)
    world.check_invariants()


def test_a_late_joiner_has_all_reservations_within_seconds():
    world = World(7)
    world.arrivals(per_s=20, until_s=20.0, life_s=1e9)
    world.run(20.0)
    world.restart(0)
    world.run(3.0)
    assert world.agree()
    assert len(world.reservations_by_node()[0]) == len(world.running) > 300


def test_nothing_is_repaired_while_nothing_is_lost():
    world = World(3)
    world.network.delay_s = 0.001
    world.arrivals(per_s=50, until_s=60.0, life_s=2.0)
    world.run(61.0)
    # Messages overtake each other within a millisecond.
    assert sum(node.repairs for node in world.nodes) <= 6


def test_leases_end_reservations_beyond_repair():
    """The only node that knew of the end dies, and the knowledge is lost."""
    world = World(11, ttl_s=100.0)
    world.arrivals(per_s=5, until_s=10.0, life_s=1e9)
    world.run(12.0)
    assert world.agree()
    world.run(101.0)
    assert world.reservations_by_node() == [{}] * 3


def test_a_selector_that_was_cut_off_while_ids_were_used_again_follows():
    """An id that is freed and admitted anew by another replica is a new reservation."""
    world = World(5)
    world.arrivals(per_s=5, until_s=5.0, life_s=1e9)
    world.run(8.0)
    for name in list(world.running)[:10]:
        world.nodes[0].selector.free_reservation(name, world.nodes[0].now())
    world.run(0.5)
    for name in list(world.running)[:10]:
        world.book(name, world.nodes[1])
    world.run(AGREE_S)
    assert world.agree()
    assert set(world.reservations_by_node()[0]) == set(world.running)


def test_one_id_admitted_by_two_replicas_at_the_same_time_is_booked_once_everywhere():
    world = World(9)
    for number in range(20):
        for node in world.nodes[:2]:
            world.book(f"twin{number}", node)
    until_agreed(world)
    assert len(world.reservations_by_node()[0]) == 20
