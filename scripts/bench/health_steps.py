"""CPU of the steps that health takes on the event loop, where ranks are many.

    python scripts/bench/health_steps.py [--ranks 10000] [--rounds 3]

Each line is one thing that is done in turns: CPU of all of them together, their number, and the
longest of them in milliseconds, of several rounds the least.  A fleet has so many ranks, one worker
of it has 1,024.
"""

import argparse
import time
from random import Random

from indexer.index.prefix_index import PrefixIndex
from select_service.bodies.workers import WorkerRegistration
from select_service.core.degrading.capacity_watch import CapacityWatch
from select_service.core.fitness.fitness import Fitness
from select_service.core.health.canary_prompts import default_prompts
from select_service.core.health.capacity import Slo
from select_service.core.health.checked import Attempt
from select_service.core.health.kinds import Came
from select_service.core.health.learnt import LearntRate
from select_service.core.health.rules import HealthRules
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.move_wishes import KeptWishes
from select_service.core.moving.learnt import Learnt
from select_service.core.moving.targets import standing
from select_service.core.selector import Selector, SelectorConfig
from select_service.starting.collector import Freezing

WIDE = 1
WIDE_RANKS, USUAL_RANKS = 1024, 8
KEY = PartitionKey("m", "default")
PROMPTS = default_prompts()


class Fleet:
    """A selector with health, and how long each of its turns takes."""

    def __init__(self, ranks):
        self.selector = selector = Selector(
            SelectorConfig(use_kv_events=False),
            lambda: PrefixIndex(1 << 16, bytes_max=1 << 30),
            rng=Random(1),
        )
        self.fitness = selector.fitness = Fitness(
            HealthRules(), lambda key: PROMPTS, selector.fleet, selector.ledger, selector.touched
        )
        self.pace, self.now = Learnt(KeptWishes()).pace, 1000.0
        promises = {"m": Slo(500.0, 20.0, 10.0)}
        partitions = selector.fleet.partitions
        watch = CapacityWatch(self.fitness.monitor, partitions, self.pace, promises, selector.gate)
        self.fitness.followers.append(watch)
        self.watch, self.longest = watch, {}
        for worker_id in range(2, 2 + (ranks - WIDE_RANKS) // USUAL_RANKS):
            self.register(worker_id, USUAL_RANKS)
            self.settle("others come")

    def register(self, worker_id, ranks):
        self.selector.register(
            WorkerRegistration(
                worker_id=worker_id,
                model_name="m",
                endpoint=f"http://w{worker_id}:8000",
                block_size=16,
                total_kv_blocks=10_000,
                decode_tokens_per_s=100.0,
                data_parallel_size=ranks,
            )
        )

    def timed(self, name, step):
        """A step of that name; what it returns."""
        begun = time.process_time()
        found = step()
        self.longest.setdefault(name, []).append((time.process_time() - begun) * 1e3)
        return found

    def settle(self, name):
        """Turns until nothing is left."""
        while self.fitness.is_behind or self.watch.is_looking:
            self.timed(name, lambda: self.selector.settle(self.now))

    def all_steps(self, name, steps):
        """Each of a generator."""
        while self.timed(name, lambda: next(steps, "the end")) != "the end":
            pass

    def ticks(self, name):
        """A round of what is due once a second, and what follows from it."""
        self.now += 1.0
        while self.timed(name, lambda: self.fitness.tick(self.now)):
            pass
        self.settle(f"{name}, what follows")

    def check(self, name):
        """All that are due at one moment."""
        while (order := self.timed(name, lambda: self.fitness.due(self.now))) is not None:
            while self.timed(name, lambda: self._failed(order)) is not None:
                pass

    def _failed(self, order):
        return self.fitness.attempted(order, Attempt(Came.CONNECT), self.now)


def walk(ranks):
    """Longest step and sum by name, with the garbage collector as the service has it."""
    collector = Freezing()
    fleet = Fleet(ranks)
    fitness, selector = fleet.fitness, fleet.selector
    for worker_id in range(2, 2 + (ranks - WIDE_RANKS) // USUAL_RANKS):
        for dp_rank in range(USUAL_RANKS):
            fleet.pace._rate(Rank(worker_id, dp_rank), KEY).value = LearntRate().or_default
    fleet.register(WIDE, WIDE_RANKS)
    fleet.settle("a worker of 1,024 ranks comes")
    fitness.check(WIDE, fleet.now)
    fleet.timed("its ranks are to be checked", lambda: fitness.check(WIDE, fleet.now))
    fleet.check("its connection fails")
    fleet.settle("its connection fails, what follows")
    fleet.ticks("a second, nobody is out")
    fleet.timed("an operator drains it", lambda: fitness.drain(WIDE, False, fleet.now))
    fleet.settle("an operator drains it")
    for worker_id in range(2, 2 + (ranks - WIDE_RANKS) // USUAL_RANKS):
        fitness.drain(worker_id, False, fleet.now)
        fleet.settle("all others drain")
    fleet.ticks("a second, all are out")
    fleet.timed("it serves again", lambda: fitness.undrain(WIDE, fleet.now))
    fleet.settle("it serves again")
    fleet.ticks("a second, it starts slowly")
    fleet.all_steps("GET /health/fleet", fitness.fleet_health(None, None, fleet.now))
    fleet.all_steps("metrics", fitness.report())
    table = selector.fleet.partitions[KEY].table
    fleet.all_steps("targets of a plan", standing(table, Rank(WIDE, 0)))
    selector.delete(WIDE, fleet.now)
    fleet.settle("it goes")
    collector.end()
    return fleet.longest


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    rounds = [walk(chosen.ranks) for _ in range(chosen.rounds)]
    print(f"{chosen.ranks} ranks: ms in all, steps, ms of the longest")
    for name in rounds[0]:
        total = min(sum(each[name]) for each in rounds)
        longest = min(max(each[name]) for each in rounds)
        print(f"{name:40} {total:9.1f} {len(rounds[0][name]):6} {longest:7.2f}", flush=True)


if __name__ == "__main__":
    main()
