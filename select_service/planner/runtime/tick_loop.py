"""Loop of ticks: observe, decide, scale and notify listeners."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Protocol

from msgspec.structs import replace

from select_service.planner.config import DeploymentConfig, PlannerConfig
from select_service.planner.config_loader import PlannerConfigError
from select_service.planner.connectors.connector import ConnectorDecision
from select_service.planner.connectors.virtual_connector import VirtualConnector
from select_service.planner.core.cluster import ClusterPlanner
from select_service.planner.core.schedule import TIME_TOLERANCE_S
from select_service.planner.core.settings import DeploymentSettings
from select_service.planner.core.tick import TickEffects
from select_service.planner.core.tick_input import Role, TickInput
from select_service.planner.deployment_status import find_change_reasons
from select_service.planner.runtime.deployment_runner import (
    LOOK_S,
    DeploymentRunner,
    ScalingTooLate,
)
from select_service.planner.runtime.stage_runner import run_stages
from select_service.planner.validation import find_config_faults

log = logging.getLogger("select_service.planner")

DEADLINE_S = 30.0
"""Time from the start of a tick to the start of its scaling.

Afterwards nothing is scaled, seconds.
"""
STEP_S = 2.0
"""Interval of the connectors' steps, seconds."""
RETRY_S = 5.0
"""Pause after a tick with an undecided deployment, which is still due. Before the first tick: pause
after a look that found faults.
"""


class TickListener(Protocol):
    """Listener to every tick, which must not block or raise."""

    def ticked(
        self, name: str, tick: TickInput, effects: TickEffects, applied: ConnectorDecision | None
    ) -> None: ...

    def changed(self, name: str, settings: DeploymentSettings, now_s: float) -> None:
        """Handle settings, before the first tick and after changes.

        now_s: start of the schedule at the first call
        """


class TickLoop:
    """Loop of a cluster, with ticks of its deployments at different times.

    Belongs to one event loop.
    """

    def __init__(
        self,
        config: PlannerConfig,
        cluster: ClusterPlanner,
        members: Mapping[str, DeploymentRunner],
        listeners: Sequence[TickListener],
        clock: Callable[[], float],
    ) -> None:
        """Create the loop. clock: seconds since 1970, monotonic"""
        self._config = config
        self._cluster = cluster
        self.members = members
        self._listeners = listeners
        self._clock = clock
        self._deciding = asyncio.Lock()
        self._desired: dict[str, dict[Role, int] | None] = {}
        """Desired replicas of the last tick, by deployment."""
        self._has_undecided = False
        """Whether a deployment was not decided in the last tick."""

    async def run(self) -> None:
        """Run until cancelled.  Observes once, then waits for the first tick."""
        for name, member in self.members.items():
            started_s = self._cluster.deployments[name].last_s
            self._notify_settings(name, member.config, started_s)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._step_connectors())
            group.create_task(self._tick_forever())

    async def tick(self) -> None:
        """Tick the deployments that are due."""
        now_s = self._clock()
        by_s = asyncio.get_running_loop().time() + DEADLINE_S
        # The tolerance covers rounding of the sum of intervals; else a tick would run twice.
        due = [name for name in self.members if self.next_tick_s(name) <= now_s + TIME_TOLERANCE_S]
        try:
            async with asyncio.timeout_at(by_s):
                told = await asyncio.gather(*(self._gather_inputs(name, now_s) for name in due))
        except TimeoutError:
            self._record_late(due)
            # Deployments are still ticked without data, which holds their replicas and records the
            # fault.
            told = [TickInput(now_s=now_s, replicas={}) for _ in due]
        by_name = dict(zip(due, told, strict=True))
        # The lock keeps changes of settings out, as the stages work on the same state.
        async with self._deciding:
            decided = await run_stages(self._cluster, self.members, by_name, by_s)
        effects = decided.effects
        applied = await asyncio.gather(
            *(self._scale_deployment(name, effects[name], by_s) for name in effects)
        )
        for name, decision in zip(effects, applied, strict=True):
            self._log_desired(name, effects[name])
            for listener in self._listeners:
                listener.ticked(name, decided.inputs[name], effects[name], decision)
        # An undecided deployment stays due, so without a pause the loop would spin.
        self._has_undecided = len(effects) < len(by_name)

    async def end_polls(self) -> None:
        """Answer all callers that wait for a decision, as the process ends."""
        for member in self.members.values():
            if isinstance(member.connector, VirtualConnector):
                await member.connector.end_polls()

    def next_tick_s(self, name: str) -> float:
        """Return the time of a deployment's next tick, seconds since 1970."""
        return self._cluster.deployments[name].next_tick.at_s

    def configs(self) -> dict[str, DeploymentConfig]:
        """Return the current configurations."""
        return {name: member.config for name, member in self.members.items()}

    def is_paused(self, name: str) -> bool:
        """Return whether a deployment is paused."""
        return name in self._cluster.paused

    async def change_settings(
        self, name: str, fields: Mapping[str, object], *, paused: bool | None = None
    ) -> DeploymentConfig:
        """Change bounds and switches from the next tick on; all or none.

        Raises KeyError for an unknown deployment, PlannerConfigError for invalid settings.
        """
        member = self.members[name]
        changed: DeploymentConfig = replace(member.config, **fields)
        configs = {**self.configs(), name: changed}
        # Validated with the platform's GPUs, as at the start; the file alone does not have them.
        completed = (
            self._cluster.deployments[of].complete_settings(own) for of, own in configs.items()
        )
        for fault in find_config_faults(replace(self._config, deployments=tuple(completed))):
            raise PlannerConfigError(fault)
        async with self._deciding:
            try:
                self._cluster.deployments[name].reconfigure(changed)
            except ValueError as error:
                raise PlannerConfigError(str(error)) from None
        if paused is not None:
            (self._cluster.paused.add if paused else self._cluster.paused.discard)(name)
        member.config = changed
        await member.switch_advisory(changed.advisory or name in self._cluster.paused)
        self._notify_settings(name, changed, self._clock())
        return changed

    async def _gather_inputs(self, name: str, now_s: float) -> TickInput:
        """Gather the input of a deployment; empty after an unexpected error."""
        needs = self._cluster.deployments[name].tick_needs(now_s)
        with self._record_failure(name, "sources"):
            return await self.members[name].gather_inputs(needs, now_s)
        return TickInput(now_s=now_s, replicas={})

    @contextmanager
    def _record_failure(self, name: str, source: str) -> Iterator[None]:
        """Record an unexpected error of a deployment, which must not end the others."""
        try:
            yield
        except Exception as error:
            self.members[name].record_failure(source, error)

    async def _scale_deployment(
        self, name: str, effects: TickEffects, by_s: float
    ) -> ConnectorDecision | None:
        """Scale a deployment. by_s: latest start, by the event loop's clock"""
        if not effects.scale_to and not effects.replace:
            return None
        decision = None
        with self._record_failure(name, "connector"):
            try:
                decision = await self.members[name].scale_to(
                    effects.scale_to or {}, by_s, effects.replace
                )
            except ScalingTooLate:
                self._record_late([name])
        begun = () if decision is None else decision.replaced
        self._cluster.deployments[name].undo_replacement(set(effects.replace) - set(begun))
        return decision

    def _record_late(self, names: Sequence[str]) -> None:
        """Record deployments that took too long."""
        for name in names:
            self.members[name].faults["tick"] = f"took over {DEADLINE_S:g} s; nothing was scaled"
        log.error("tick took too long, nothing scaled", extra={"fields": {"of": names}})

    async def _step_connector(self, name: str) -> None:
        """Run a step of a connector."""
        with self._record_failure(name, "connector"):
            await self.members[name].step_connector()

    def _log_desired(self, name: str, effects: TickEffects) -> None:
        """Log desired replicas once, however many ticks pass until the platform has followed."""
        if effects.wished == self._desired.get(name):
            return
        self._desired[name] = effects.wished
        if effects.wished is None:
            return
        # Common reasons alone do not explain a step: the stages of its role have their own.
        reasons = chain.from_iterable(
            find_change_reasons(effects.diagnostics, role, count)
            for role, count in effects.wished.items()
        )
        fields = {
            "deployment": name,
            "replicas": {role.value: count for role, count in effects.wished.items()},
            "reasons": [each.value for each in dict.fromkeys(reasons)],
            "replace": list(effects.replace),
            "is_scaled": effects.scale_to is not None and not self.is_paused(name),
        }
        log.info("replicas decided", extra={"fields": fields})

    def _notify_settings(self, name: str, config: DeploymentConfig, now_s: float) -> None:
        """Notify the listeners of settings."""
        for listener in self._listeners:
            listener.changed(name, config.core_settings(), now_s)

    async def _observe_before_ticks(self) -> None:
        """Observe once, and repeat for faulty deployments: their sources may still be starting."""
        names = list(self.members)
        while names:
            await asyncio.gather(*map(self._observe_deployment, names))
            names = [name for name in names if self.members[name].faults]
            left_s = min(map(self.next_tick_s, self.members)) - self._clock()
            # Another look must not delay the first tick.
            if left_s < RETRY_S + LOOK_S:
                return
            await asyncio.sleep(RETRY_S)

    async def _observe_deployment(self, name: str) -> None:
        """Observe a deployment without a tick."""
        with self._record_failure(name, "sources"):
            await self.members[name].observe_once()

    async def _tick_forever(self) -> None:
        """Tick until cancelled."""
        await self._observe_before_ticks()
        while True:
            at_s = min(map(self.next_tick_s, self.members))
            await asyncio.sleep(max(0.0, at_s - self._clock()))
            await self.tick()
            if self._has_undecided:
                await asyncio.sleep(RETRY_S)

    async def _step_connectors(self) -> None:
        """Run the connectors' steps until cancelled."""
        while True:
            await asyncio.sleep(STEP_S)
            await asyncio.gather(*map(self._step_connector, self.members))
