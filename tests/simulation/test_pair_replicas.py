"""Pairs between replicas over a network that loses, repeats and reorders messages."""

from contextlib import suppress

import msgspec
import pytest

from select_service.base.errors import SelectError
from select_service.core.load.prefill_legs import is_prefill_leg, owner_of
from select_service.core.pairs.pair_book import ORPHAN_S
from select_service.schemas.pairs import SelectPairAndReserveRequest
from tests.builders import a_worker
from tests.simulation.test_replicas import a_bad_time, end_all, until_agreed
from tests.simulation.world import Node, World

SEEDS = range(4)


class PairNode(Node):
    def workers(self, n_workers):
        for worker_id in range(1, 7):
            link = {"host": f"h{worker_id % 3}", "link_gbps": 100.0, "bytes_per_token": 131072.0}
            role = "prefill" if worker_id < 4 else "decode"
            yield a_worker(worker_id, role=role, kv_transfer=link, prefill_tokens_per_s=33_000.0)

    def tick(self):
        for _ in range(3):
            self.selector.run_pending(self.now())
        super().tick()


class PairWorld(World):
    def new_node(self, number):
        return PairNode(self, number, self._n_workers, self._ttl_s)

    def book(self, name, node):
        body = {
            "model_name": "m",
            "reservation_id": name,
            "token_ids": list(range(self.rng.randrange(4, 40))),
            "local": self.rng.choice(["auto", "never"]),
        }
        node.selector.select_pair(msgspec.convert(body, SelectPairAndReserveRequest), node.now())
        self.running[name] = node.number
        self.at(self.rng.uniform(0, 3), lambda: self.anywhere(name, "report_first_token"))
        if self.rng.random() < 0.2:
            leg = self.rng.choice(["prefill", "decode"])
            self.at(self.rng.uniform(0, 1), lambda: self.move(name, leg))

    def move(self, name, leg):
        """At any node: the one that booked the pair may be gone."""
        node = self.rng.choice(self.nodes)
        if name in self.running and node.selector.pairs.book.find_pair(name) is not None:
            with suppress(SelectError):
                node.selector.pairs.move_leg(name, leg, node.now())

    def legs_without_owner(self):
        return [
            {name for name in held if is_prefill_leg(name) and owner_of(name) not in held}
            for held in self.held()
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
    assert world.held() == [{}] * 3
    world.check_invariants()


@pytest.mark.parametrize("seed", SEEDS)
def test_no_leg_remains_although_processes_die(seed):
    world = PairWorld(seed, n_nodes=4)
    a_bad_time(world, seconds=40.0, restarts=3)
    end_all(world)
    world.run(2 * ORPHAN_S)
    until_agreed(world)
    assert world.legs_without_owner() == [set()] * 4
