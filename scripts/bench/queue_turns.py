"""CPU of a turn of the admission queue with many classes, flows and constraints.

    python scripts/bench/queue_turns.py [--lanes 3200] [--ranks 64] [--turns 60]

Milliseconds of one thread per turn: median and maximum over the turns until the queue is empty or
`--turns` are over, and requests served per turn.  The fleet is full at first; then one rank, or
every rank, gets room before each turn.  Requests are `anywhere` (each of its own flow), `allowed`
(each names half of the workers, all different), `pinned`, `pairs` (each leg names workers), or
`priority` (as `allowed`, with different strict priorities).
"""

import argparse
import time
from itertools import count
from random import Random
from statistics import median
from typing import Any, NamedTuple

import msgspec

from indexer.index.prefix_index import PrefixIndex
from select_service.core.admission.admission_settings import AdmissionSettings
from select_service.core.admission.policy_classes import (
    PolicyClassProfile,
    PolicyDocument,
    QueueBounds,
    QueueRules,
)
from select_service.core.admission.waiting_ticket import WaitingTicket
from select_service.core.selector import SelectorCore
from select_service.core.selector_builder import SelectorConfig, build_selector
from select_service.schemas.pairs import SelectPairRequest
from select_service.schemas.reservations import ReservationRequest
from select_service.schemas.selection import SelectAndReserveRequest
from select_service.schemas.workers import WorkerRegistration

BLOCK_SIZE, PROMPT_TOKENS = 16, 64
KINDS = ("anywhere", "allowed", "pinned", "pairs", "priority")
WARM_UP_TURNS = 100
"""Turns before the measurement, in which candidates of lanes are found again."""


class TurnScene(NamedTuple):
    """Requests of a measurement.  releases_all: whether every rank gets room"""

    kind: str
    classes: int
    releases_all: bool


def make_rules(n_classes: int) -> QueueRules:
    """Return classes that requests name, with different limits and quanta."""
    policies = [
        {"name": f"c{n}", "quantum": 1 + n, "prefill_busy_threshold": n} for n in range(n_classes)
    ]
    policies[0] |= {"policy_family": "usual", "cache_bucket": "all"}
    document = {
        "default_policy_family": "usual",
        "uncached_isl_buckets": [{"min_tokens": 0, "bucket": "all"}],
        "policy_classes": policies,
    }
    profile = PolicyClassProfile(msgspec.convert(document, PolicyDocument))
    return QueueRules(profile, bounds=QueueBounds(1 << 17, 1 << 40))


def make_selector(rules: QueueRules, ranks: int) -> SelectorCore:
    settings = AdmissionSettings(queue=rules)
    selector = build_selector(
        SelectorConfig(admission=settings, use_kv_events=False),
        lambda: PrefixIndex(1 << 16),
        rng=Random(1),
        wake=lambda: None,
    )
    for worker_id in range(ranks):
        given = {"worker_id": worker_id, "model_name": "m", "endpoint": "http://w"}
        given |= {"block_size": BLOCK_SIZE, "max_num_batched_tokens": 8192}
        selector.register_worker(msgspec.convert(given, WorkerRegistration))
    return selector


def body_of(kind: str, number: int, ranks: int, rng: Random) -> dict[str, Any]:
    hashes = [number * 100 + k + 1 for k in range(PROMPT_TOKENS // BLOCK_SIZE)]
    body: dict[str, Any] = {"model_name": "m", "block_hashes": hashes, "sequence_hashes": hashes}
    body |= {"isl_tokens": PROMPT_TOKENS}
    some = sorted(rng.sample(range(ranks), ranks // 2))
    if kind == "anywhere":
        body["fairness_id"] = f"f{number}"
    elif kind == "pinned":
        body |= {"pinned_worker": {"worker_id": number % ranks, "dp_rank": 0}}
        body["fairness_id"] = f"f{number // ranks}"
    elif kind == "pairs":
        rest = sorted(set(range(ranks)) - set(some))
        legs = {"prefill": {"allowed_worker_ids": some}, "decode": {"allowed_worker_ids": rest}}
        body |= {**legs, "local": "never"}
    else:
        body |= {"allowed_worker_ids": some, "fairness_id": f"f{number % 61}"}
        if kind == "priority":
            body["strict_priority"] = number % 16
    return body


class FullQueue:
    """A full fleet with waiting requests."""

    def __init__(self, scene: TurnScene, lanes: int, ranks: int) -> None:
        self.scene, self.ranks = scene, ranks
        self.selector = make_selector(make_rules(scene.classes), ranks)
        self._loads = count()
        self.load_of: dict[int, list[str]] = {worker_id: [] for worker_id in range(ranks)}
        for worker_id in range(ranks):
            self._fill(worker_id)
        rng = Random(2)
        self.tickets: list[WaitingTicket] = []
        for number in range(lanes):
            self._ask(body_of(scene.kind, number, ranks, rng), f"c{number % scene.classes}", number)
        self.served: list[str] = []

    def _ask(self, body: dict[str, Any], policy_class: str, number: int) -> None:
        if self.scene.kind == "pairs":
            pair = msgspec.convert(body, SelectPairRequest)
            outcome = self.selector.select_pair(pair, 0.0, policy_class)
        else:
            body["reservation_id"] = f"r{number}"
            request = msgspec.convert(body, SelectAndReserveRequest)
            outcome = self.selector.select_and_reserve(request, 0.0, policy_class)
        assert isinstance(outcome, WaitingTicket)
        outcome.on_settled = lambda: self._book(outcome)
        self.tickets.append(outcome)

    def _book(self, ticket: WaitingTicket) -> None:
        outcome = ticket.outcome
        assert not isinstance(outcome, Exception), outcome
        self.served.append(f"r{ticket.number}")

    def _fill(self, worker_id: int) -> None:
        name = f"load{next(self._loads)}"
        body = {"reservation_id": name, "worker_id": worker_id, "model_name": "m"}
        body |= {"block_hashes": [worker_id + 1 << 40], "sequence_hashes": [worker_id + 1 << 40]}
        body |= {"isl_tokens": 4096, "effective_prefill_tokens": 4096}
        self.selector.reserve(msgspec.convert(body, ReservationRequest), 0.0)
        self.load_of[worker_id].append(name)

    def _release(self, turn: int) -> None:
        """Free what runs on a rank, or on all."""
        freed, self.served = self.served, []
        if self.scene.kind == "pairs":
            # A selection uses up no room: the ranks are full again before the next turn.
            for worker_id, names in self.load_of.items():
                if not names:
                    self._fill(worker_id)
        for name in freed:
            if self.scene.kind != "pairs":
                self.selector.complete_prefill(name, 0.0)
        n = self.ranks if self.scene.releases_all else 2 if self.scene.kind == "pairs" else 1
        for k in range(n):
            for name in self.load_of[(turn * n + k) % self.ranks]:
                self.selector.free_reservation(name, 0.0)
            self.load_of[(turn * n + k) % self.ranks] = []

    def run(self, turns: int) -> tuple[list[float], int]:
        """Return the milliseconds of each turn, and the number of requests served."""
        self.selector.gate.mark_all_queues()
        for _ in range(WARM_UP_TURNS):
            self.selector.run_pending(0.0)
        took: list[float] = []
        waiting = self.selector.gate.waiting
        at_first = waiting.requests
        for turn in range(turns):
            if not waiting.requests:
                break
            self._release(turn)
            begin = time.thread_time_ns()
            self.selector.run_pending(0.0)
            took.append((time.thread_time_ns() - begin) / 1e6)
        return took, at_first - waiting.requests


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python scripts/bench/queue_turns.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--lanes", type=int, default=3200, help="waiting requests; 3200")
    parser.add_argument("--ranks", type=int, default=64, help="64")
    parser.add_argument("--turns", type=int, default=60, help="60")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    options = parser.parse_args()
    print("| requests | classes | room on | median, ms | maximum, ms | served per turn |")
    print("|---|---|---|---|---|---|")
    for kind in options.kinds:
        for classes in (4, 64):
            for releases_all in (False, True):
                scene = TurnScene(kind, classes, releases_all)
                took, served = FullQueue(scene, options.lanes, options.ranks).run(options.turns)
                # The first turn prepares tables and fills caches of the processor.
                room = "all ranks" if releases_all else "one rank"
                cells = f"{median(took):.2f} | {max(took[1:]):.2f} | {served / len(took):.1f}"
                print(f"| {kind} | {classes} | {room} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
