"""Player of the virtual connector's decisions under `--profile document`, recorded on a real etcd.

The recorded coordinator saw acknowledgements through a watch, with a short delay. A state right
after an acknowledgement may therefore be the old or the new state.
"""

import re
from collections.abc import Iterator
from typing import Any

from select_service.planner.connectors.virtual_reference_state import ReferenceDecisionState
from select_service.planner.core.tick_input import Role
from tests.vectors.differences import MISSING, Difference, differences

Case = dict[str, Any]

TOOK_S = 0.5
"""Tolerance of recorded waits, in s."""
_UPDATE = re.compile(r"update\((\w+), ?(\w+)\)")


class _Recording:
    """Coordinator and client of a recording, and the time between their steps."""

    def __init__(self, max_wait_s: float) -> None:
        self.state = ReferenceDecisionState(max_wait_s=max_wait_s)
        self.max_wait_s = max_wait_s
        self.now = 0.0

    def do(self, words: str) -> float:
        """Return the seconds that a step takes, or raise ValueError for an unknown step."""
        update = _UPDATE.match(words)
        if update:
            wanted = _target_counts(*update.groups())
            self.state, _ = self.state.with_counts(wanted, self.now)
        elif words.startswith("client.complete"):
            number = 0 if "old" in words else self.state.decision.decision_id
            self.state, _ = self.state.with_acknowledgement(number, self.now, {})
        elif words.startswith("wait_for_completion"):
            return self.max_wait_s if self.state.is_open else 0.0
        elif words != "initial":
            raise ValueError(f"unknown step {words!r}")
        return 0.0

    def counts(self) -> list[int]:
        """Return [prefill, decode, number]."""
        decision = self.state.decision
        return [decision.num_prefill, decision.num_decode, decision.decision_id]


def _target_counts(prefill: str, decode: str) -> dict[Role, int]:
    given = {Role.PREFILL: prefill, Role.DECODE: decode}
    return {role: int(count) for role, count in given.items() if count != "None"}


def play(case: Case) -> Iterator[Difference]:
    """Compare all steps, and the state that a restarted coordinator finds."""
    played = _Recording(float(case["setup"]["max_wait_secs"]))
    for number, step in enumerate(case["steps"]):
        where = f"steps[{number}]"
        if "client_get" in step:
            yield from differences(step["client_get"], played.counts(), f"{where}.client_get")
            continue
        yield from _step(step, played, where)
    if "restarted_coordinator" in case:
        found = {"state": played.counts(), "ready": not played.state.is_open}
        yield from differences(case["restarted_coordinator"], found, "restarted_coordinator")


def _step(step: Case, played: _Recording, where: str) -> Iterator[Difference]:
    before = not played.state.is_open
    took_s = played.do(step["do"])
    played.now += step.get("took_s", took_s)
    ready = not played.state.is_open
    if step["do"].startswith("client.complete") and step.get("ready") in (before, ready):
        ready = step["ready"]
    found = {"state": played.counts(), "ready": ready}
    yield from differences({key: step.get(key, MISSING) for key in found}, found, where)
    if abs(step.get("took_s", took_s) - took_s) > TOOK_S:
        yield Difference(f"{where}.took_s", step["took_s"], took_s)
