"""Tests of pairs between replicas over a network that loses, repeats and reorders messages."""

from contextlib import suppress

import msgspec
import pytest

from select_service.base.errors import NoEligibleRank, SelectError
from select_service.core.load.prefill_legs import is_prefill_leg, owner_of
from select_service.core.pairs.pair_book import ORPHAN_S
from select_service.schemas.pairs import SelectPairAndReserveRequest
from tests.builders import a_worker
from tests.simulation.test_replicas import AGREE_S, a_bad_time, end_all, until_agreed
from tests.simulation.world import Node, World

SEEDS = range(4)


class PairNode(Node):
    def workers(self, n_workers):
        for worker_id in range(1, 7):
            link = {"host": f"h{worker_id % 3}", "link_gbps": 100.0, "bytes_per_token": 131072.0}
            role = "prefill" if worker_id < 4 else "decode"
            yield a_worker(worker_id, role=role, kv_transfer=link, prefill_tokens_per_s=33_000.0)

    def replace_worker(self, worker_id):
        """Remove a worker, and register it again after a while."""
        with suppress(SelectError):  # removed already
            self.selector.delete_worker(worker_id, self.now())
            self.selector.drain_removed_ranks(self.now())
        worker = list(self.workers(0))[worker_id - 1]
        self.world.at(self.world.rng.uniform(1, 5), lambda: self.selector.register_worker(worker))

    def tick(self):
        for _ in range(3):
            self.selector.run_pending(self.now())
        super().tick()


class PairWorld(World):
    move_share = 0.2
    """Share of pairs of which a leg moves."""

    def new_node(self, number):
        return PairNode(self, number, self._n_workers, self._ttl_s)

    def book(self, name, node):
        body = {
            "model_name": "m",
            "reservation_id": name,
            "token_ids": list(range(self.rng.randrange(4, 40))),
            "local": self.rng.choice(["auto", "never"]),
        }
        request = msgspec.convert(body, SelectPairAndReserveRequest)
        with suppress(NoEligibleRank):  # all workers of a role are away
            node.selector.select_pair(request, node.now())
            self.running[name] = node.number
        self.at(self.rng.uniform(0, 3), lambda: self.anywhere(name, "report_first_token"))
        if self.rng.random() < self.move_share:
            leg = self.rng.choice(["prefill", "decode"])
            self.at(self.rng.uniform(0, 1), lambda: self.move(name, leg))

    def move(self, name, leg):
        """Move a leg at any node, because the node that booked the pair may be gone."""
        node = self.rng.choice(self.nodes)
        if name in self.running and node.selector.pairs.book.find_pair(name) is not None:
            with suppress(SelectError):
                node.selector.pairs.move_leg(name, leg, node.now())

    def replace_workers(self, times, seconds):
        """Replace random workers at all nodes, at each up to two seconds later than at another."""
        for _ in range(times):
            worker_id, begin = self.rng.randint(1, 6), self.rng.uniform(0, seconds)
            for node in self.nodes:
                at = begin + self.rng.uniform(0, 2)
                self.at(at, lambda n=node, w=worker_id: n.replace_worker(w))

    def legs_without_owner(self):
        return [
            {name for name in held if is_prefill_leg(name) and owner_of(name) not in held}
            for held in self.reservations_by_node()
        ]

    def check_invariants(self):
        super().check_invariants()
        for node in self.nodes:
            (partition,) = node.selector.fleet.partitions.values()
            assert node.selector.pairs.links.links_of(partition).placer.waiting_by_host() == (
                {},
                {},
            )


@pytest.mark.parametrize("seed", SEEDS)
def test_both_legs_agree_after_the_network_heals(seed):
    world = PairWorld(seed)
    a_bad_time(world, seconds=40.0)
    until_agreed(world)
    world.run(2 * ORPHAN_S)
    until_agreed(world)
    assert world.legs_without_owner() == [set()] * 3
    end_all(world)
    world.run(5.0)
    until_agreed(world)
    assert world.reservations_by_node() == [{}] * 3
    world.check_invariants()


@pytest.mark.parametrize("seed", SEEDS)
def test_no_leg_remains_although_processes_die(seed):
    world = PairWorld(seed, n_nodes=4)
    a_bad_time(world, seconds=40.0, restarts=3)
    end_all(world)
    world.run(2 * ORPHAN_S)
    until_agreed(world)
    assert world.legs_without_owner() == [set()] * 4


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("move_share", "bound_s"), [(0.0, AGREE_S), (0.2, 2 * ORPHAN_S)])
def test_no_leg_remains_although_workers_leave_at_each_node_at_another_time(
    seed, move_share, bound_s
):
    """A moved leg may belong to another node than the pair, and end as one without an owner."""
    world = PairWorld(seed)
    world.move_share = move_share
    world.network.delay_s = world.rng.choice([0.001, 0.05, 0.5])
    world.replace_workers(12, seconds=30.0)
    world.arrivals(per_s=4, until_s=30.0, life_s=10.0)
    world.run(40.0)
    end_all(world)
    world.run(bound_s)
    assert world.reservations_by_node() == [{}] * 3
    world.check_invariants()
