"""Tests of a deployment under any input: ceilings, minima, unknown values, changes in progress."""

from collections.abc import Mapping
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from select_service.planner.core.settings import minimum_replicas
from select_service.planner.core.tick import PlannedDeployment, TickEffects
from select_service.planner.core.tick_input import (
    ForwardPass,
    Role,
    RoleReplicas,
    TickInput,
    TrafficWindow,
)
from tests.planner.core.deployments import (
    HOT,
    IDLE,
    WARM,
    a_deployment,
    passes,
    replicas,
    traffic,
)
from tests.planner.invariants import check_deployment

GPUS = 12
states = st.sampled_from([HOT, WARM, IDLE])


class DeploymentMachine(RuleBasedStateMachine):
    """Platform that follows decisions late, and a fleet with arbitrary reports."""

    @initialize(
        load=st.booleans(),
        minimum=st.integers(0, 2),
        mode=st.sampled_from(["disagg", "agg"]),
        step=st.sampled_from(["single", "proportional"]),
    )
    def begin(self, load: bool, minimum: int, mode: str, step: str) -> None:
        self.given: dict[str, Any] = {
            "enable_load_scaling": load,
            "min_endpoint": minimum,
            "max_gpu_budget": GPUS,
            "down_window_s": 60.0,
            "mode": mode,
            "step": step,
        }
        self.deployment = a_deployment(**self.given)
        self.again = a_deployment(**self.given)
        self.roles = self.deployment.roles
        self.ready = dict.fromkeys(self.roles, 3)
        self.pending = dict.fromkeys(self.roles, 0)
        self.now = 0.0

    def _tick(
        self,
        seen: TrafficWindow | None,
        engines: Mapping[Role, tuple[ForwardPass, ...]] | None,
        *,
        moving: bool = False,
    ) -> TickEffects:
        self.now += 5.0
        counts: dict[Role, RoleReplicas] = {
            role: replicas(self.ready[role], self.pending[role], in_progress=moving)
            if not moving
            else RoleReplicas(ready=self.ready[role], expected=self.ready[role], in_progress=True)
            for role in self.roles
        }
        tick = TickInput(now_s=self.now, replicas=counts, traffic=seen, passes=engines)
        effects = self.deployment.run_tick(tick)
        self._same_again(tick, effects)
        return effects

    def _same_again(self, tick: TickInput, effects: TickEffects) -> None:
        """Check the same tick from the log, with the engines in another order."""
        read = msgspec.json.decode(msgspec.json.encode(tick), type=TickInput)
        if read.passes is not None:
            turned = {role: tuple(reversed(all_of)) for role, all_of in read.passes.items()}
            read = msgspec.structs.replace(read, passes=turned)
        other = self.again.run_tick(read)
        assert msgspec.json.encode(other) == msgspec.json.encode(effects)

    def _engines(self, said: str) -> dict[Role, tuple[ForwardPass, ...]]:
        return {role: passes(role, [said] * self.ready[role]) for role in self.roles}

    def _apply(self, effects: TickEffects) -> None:
        """Apply a decision on the platform: additions start, removals happen at once."""
        for role, number in (effects.scale_to or {}).items():
            assert number >= 0
            self.pending[role] = max(0, number - self.ready[role])
            self.ready[role] = min(self.ready[role], number)

    @property
    def _count_of_tenants(self) -> int:
        return sum(self.ready[role] + self.pending[role] for role in self.roles)

    @rule(requests=st.floats(0, 3000), said=states, waiting=st.floats(0, 3))
    def tick_with_traffic(self, requests: float, said: str, waiting: float) -> None:
        seen = traffic(requests, queued_requests=waiting)
        self._apply(self._tick(seen, self._engines(said)))

    @rule(said=states, times=st.integers(1, 14))
    def steady(self, said: str, times: int) -> None:
        for _ in range(times):
            self._apply(self._tick(traffic(60.0), self._engines(said)))

    @rule(heard=st.booleans())
    def tick_without_traffic(self, heard: bool) -> None:
        """A forecast without a window, when due, scales nothing down."""
        due = self.deployment.next_tick.run_throughput
        before = {role: self.ready[role] + self.pending[role] for role in self.roles}
        effects = self._tick(None, self._engines(WARM) if heard else None)
        if due:
            for role, number in (effects.scale_to or {}).items():
                assert number >= before[role]
        self._apply(effects)

    @rule(said=states)
    def something_rolls(self, said: str) -> None:
        """Changes other than a start-up prevent all proposals."""
        self.pending = dict.fromkeys(self.roles, 0)
        effects = self._tick(traffic(3000.0), self._engines(said), moving=True)
        assert effects.scale_to is None

    @precondition(lambda self: any(self.pending.values()))
    @rule()
    def start_ups_are_ready(self) -> None:
        for role in self.roles:
            self.ready[role] += self.pending[role]
            self.pending[role] = 0

    @rule(role=st.sampled_from([Role.PREFILL, Role.DECODE]))
    def one_crashes(self, role: Role) -> None:
        if self.ready.get(role, 0) > 0:
            self.ready[role] -= 1

    @invariant()
    def ceilings_hold(self) -> None:
        if hasattr(self, "deployment"):
            assert self._count_of_tenants <= GPUS
            check_deployment(self.deployment)

    @rule()
    def minima_come_back(self) -> None:
        """Minima return in a single tick while nothing is in progress."""
        self.pending = dict.fromkeys(self.roles, 0)
        self._apply(self._tick(traffic(60.0), self._engines(WARM)))
        for role in self.roles:
            least = minimum_replicas(self.deployment.settings, role)
            assert self.ready[role] + self.pending[role] >= least


TestDeploymentMachine = DeploymentMachine.TestCase
TestDeploymentMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def test_a_deployment_is_rebuilt_from_its_ticks() -> None:
    """A deployment that repeats half of the ticks decides the same from there on."""
    ticks = [
        TickInput(
            now_s=5.0 * at,
            replicas={role: replicas(2 + at % 3) for role in Role},
            traffic=traffic(300.0 + 40.0 * at, ttft_met=0.9) if at % 12 == 0 else None,
            passes={role: passes(role, [WARM] * (2 + at % 3)) for role in Role},
        )
        for at in range(1, 100)
    ]
    one: PlannedDeployment = a_deployment(enable_load_scaling=True)
    said = [msgspec.json.encode(one.run_tick(tick)) for tick in ticks]
    two: PlannedDeployment = a_deployment(enable_load_scaling=True)
    for tick in ticks[:50]:
        two.run_tick(tick)
    assert [msgspec.json.encode(two.run_tick(tick)) for tick in ticks[50:]] == said[50:]
