"""What requests on hold cost, next to requests in a queue by load and to none, in the core.

    python scripts/bench/hold.py [--rounds 15]

Microseconds of CPU, medians of rounds in which all setups take turns:

    passes   `select_and_reserve` of a request that does not wait
    waits    the same of one that has to, with 1, 100 or 1,000 others before it
    goes     looking who may go, until one has gone: after the end of a prefill
"""

import argparse
import sys
import time
from collections import deque
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from select_service.bodies.selection import SelectAndReserveRequest
from select_service.core.admission.policy_classes import QueueRules, single_class
from select_service.core.admission.waiting import Ticket
from select_service.core.decide.prompt import Prompt, PromptRead
from select_service.core.decide.router_config import RouterConfig
from select_service.core.decisions import Decision
from select_service.replaying.core_choosers import MODEL, Scene, Setting, a_selector
from select_service.replaying.hardware import BLOCK_TOKENS, EQUAL

SETUPS = {
    "no queue": None,
    "fcfs": QueueRules(single_class("fcfs", 4.0)),
    "work": QueueRules(single_class("work", 1.0)),
}
"""A rank has room below 4 * 2,048 booked tokens, and below 8,192 that are left."""
BEHIND = (1, 100, 1000)
BLOCKS = 150
PER_ROUND = 200
TURN_S = 0.001


class Costs(NamedTuple):
    """Microseconds of CPU, means of a round."""

    waits: float
    goes: float


class Fleet:
    """Eight ranks, whose prompts all differ, and callers who report."""

    def __init__(self, rules: QueueRules | None) -> None:
        scene, setting = Scene(EQUAL, 4000, seed=1), Setting(queue=rules)
        self.selector = a_selector(scene, RouterConfig(policy="work"), setting)
        self.now = 0.0
        self.spent_ns = 0
        self._number = 0

    def ask(self) -> Decision | Ticket:
        self._number += 1
        self.now += TURN_S
        first = self._number * BLOCKS
        names = np.arange(first, first + BLOCKS, dtype=np.uint64)
        read = PromptRead(BLOCK_TOKENS, False, Prompt(names, names, BLOCKS * BLOCK_TOKENS))
        request = SelectAndReserveRequest(model_name=MODEL, reservation_id=str(self._number))
        begin = time.process_time_ns()
        answer = self.selector.select_and_reserve(request, self.now, read=read)
        self.spent_ns += time.process_time_ns() - begin
        return answer

    def end(self, decision: Decision) -> None:
        name = decision.selection.reservation_id
        assert isinstance(name, str)
        self.selector.prefill_complete(name, self.now)
        self.selector.free(name, self.now)

    def took_us(self, n: int) -> float:
        """A mean, of what was spent since the last call."""
        spent, self.spent_ns = self.spent_ns, 0
        return spent / n / 1e3


def passing_us(fleet: Fleet) -> float:
    fleet.spent_ns = 0
    for _ in range(PER_ROUND):
        answer = fleet.ask()
        assert isinstance(answer, Decision)
        fleet.end(answer)
    return fleet.took_us(PER_ROUND)


def queueing_us(rules: QueueRules, behind: int) -> Costs:
    """One comes and one goes, while so many others wait."""
    fleet, live = Fleet(rules), deque[Decision]()
    while isinstance(answer := fleet.ask(), Decision):
        live.append(answer)
    waiting = deque([answer, *(fleet.ask() for _ in range(behind - 1))])
    fleet.spent_ns, goes_ns = 0, 0
    for _ in range(PER_ROUND):
        waiting.append(fleet.ask())
        fleet.end(live.popleft())
        begin = time.process_time_ns()
        fleet.selector.settle(fleet.now)
        goes_ns += time.process_time_ns() - begin
        gone = waiting.popleft()
        assert isinstance(gone, Ticket)
        assert isinstance(gone.outcome, Decision)
        live.append(gone.outcome)
    return Costs(fleet.took_us(PER_ROUND), goes_ns / PER_ROUND / 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    fleets = {name: Fleet(rules) for name, rules in SETUPS.items()}
    passes = [{name: passing_us(fleet) for name, fleet in fleets.items()} for _ in range(rounds)]
    print("| | " + " | ".join(SETUPS) + " |\n|---|" + "---|" * len(SETUPS))
    print("| passes | " + " | ".join(f"{median(r[n] for r in passes):.1f}" for n in SETUPS) + " |")
    queues = {name: rules for name, rules in SETUPS.items() if rules is not None}
    for behind in BEHIND:
        found = [{n: queueing_us(rules, behind) for n, rules in queues.items()} for _ in range(3)]
        for part in Costs._fields:
            cells = [f"{median(getattr(row[name], part) for row in found):.0f}" for name in queues]
            print(f"| {part}, {behind} before it | | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
