"""Tests of sessions between replicas: agreement after faults, and no move of live sessions."""

import pytest

from tests.simulation.session_world import SessionWorld

AGREE_S = 45.0
"""Bound in s, as for reservations: from the last fault to equal sessions."""
SEEDS = range(6)
WARM_S = 20.0


def until_agreed(world):
    begin = world.time
    while not world.sessions_agree():
        assert world.time - begin < AGREE_S, [node.bindings() for node in world.nodes]
        world.run(0.5)


def rank_of(binding):
    return tuple(binding[0])


@pytest.mark.parametrize("seed", SEEDS)
def test_sessions_agree_after_loss_reordering_and_partitions(seed):
    world = SessionWorld(seed)
    rng, network = world.rng, world.network
    world.run(WARM_S)
    network.loss, network.repeat = rng.choice([0.1, 0.4]), 0.1
    network.delay_s = rng.choice([0.001, 0.5])
    lonely = rng.randrange(3)
    cut = {(lonely, n) for n in range(3)} | {(n, lonely) for n in range(3)}
    world.at(10.0, lambda: network.cut.update(cut))
    world.at(30.0, network.cut.clear)
    world.start_conversations(60, turns=5, over_s=20.0)
    world.run(60.0)
    network.heal()
    until_agreed(world)
    assert len(world.nodes[0].bindings()) == 60
    world.check_invariants()


@pytest.mark.parametrize("seed", SEEDS)
def test_no_restart_moves_a_session(seed):
    """Sessions stay, whatever the restarted node does meanwhile, in doubt or not."""
    world = SessionWorld(seed, n_nodes=4)
    world.network.delay_s = 0.002
    world.run(WARM_S)
    world.start_conversations(40, turns=20, over_s=10.0)
    for at in (15.0, 25.0, 26.0, 40.0):
        world.at(at, lambda: world.restart(3))
    for _ in range(200):
        world.run(0.25)
        for node in world.nodes[:3]:
            for session, binding in node.bindings().items():
                assert rank_of(binding) == world.first_ranks[session]
    until_agreed(world)
    assert {s: rank_of(b) for s, b in world.nodes[3].bindings().items()} == world.first_ranks
    world.check_invariants()


def test_a_late_joiner_has_all_sessions_within_seconds():
    world = SessionWorld(5)
    world.run(WARM_S)
    world.start_conversations(200, turns=1, over_s=5.0)
    world.run(10.0)
    world.restart(0)
    world.run(5.0)
    assert world.sessions_agree()
    assert len(world.nodes[0].bindings()) == 200


def test_sessions_end_although_replicas_read_them_from_each_other():
    world = SessionWorld(6, session_ttl_s=20.0)
    world.network.loss = 0.2
    world.start_conversations(50, turns=2, over_s=5.0)
    world.run(60.0)
    world.network.heal()
    # Ends of reservations were lost, and their leases live until the load is repaired.
    world.run(AGREE_S + 20.0)
    assert [node.bindings() for node in world.nodes] == [{}] * 3
    world.check_invariants()


def test_nothing_is_read_while_nothing_is_lost():
    world = SessionWorld(7, session_ttl_s=30.0)
    world.run(WARM_S)
    world.start_conversations(100, turns=4, over_s=30.0)
    world.run(60.0)
    assert sum(node.session_repairs for node in world.nodes) <= 3


def test_leases_of_peers_keep_a_session_and_end_with_their_reservations():
    world = SessionWorld(8, session_ttl_s=10.0)
    world.run(WARM_S)
    node = world.nodes[0]
    world.rng.choice = lambda options: options[0]
    world.at(0.0, lambda: world.converse("s", 1))
    world.run(0.1)
    # The reservation outlives the idle time of the session.
    name = next(iter(world.running))
    ended = world.running.pop(name)
    world.run(30.0)
    assert [list(n.bindings()) for n in world.nodes] == [["s"]] * 3
    world.running[name] = ended
    world.end(name)
    world.run(5.0)
    assert [list(n.bindings()) for n in world.nodes] == [["s"]] * 3
    world.run(6.0)
    assert [list(n.bindings()) for n in world.nodes] == [[]] * 3
    assert node.exchange.directory.n_leases == 0
