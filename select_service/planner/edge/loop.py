"""EDGE: ticks at their times: ask everything, decide, scale, and tell who wants to know."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from select_service.planner.config import DeploymentConfig, PlannerConfig
from select_service.planner.connectors.base import Decision
from select_service.planner.connectors.opening import virtual_of
from select_service.planner.core.cluster import Cluster
from select_service.planner.core.inputs import Role, TickInput
from select_service.planner.core.schedule import EARLY_S
from select_service.planner.core.settings import Settings
from select_service.planner.core.tick import Effects
from select_service.planner.edge.member import LOOK_S, Member, TooLate
from select_service.planner.judging import faults
from select_service.planner.reading import ConfigError

log = logging.getLogger(__name__)

DEADLINE_S = 30.0
"""From the beginning of a tick to the beginning of its scaling; then nothing is scaled."""
STEP_S = 2.0
"""Between two steps of what connectors have under way."""
RETRY_S = 5.0
"""After a tick in which a deployment could not be decided: it is still due; and before the first
tick, from a look that found faults to the next one."""


class Listener(Protocol):
    """Is told of every tick, and must not block or raise."""

    def ticked(
        self, name: str, tick: TickInput, effects: Effects, applied: Decision | None
    ) -> None: ...

    def changed(self, name: str, settings: Settings, now_s: float) -> None:
        """Before the first tick, of when the schedule began; then whenever settings change."""


class Loop:
    """Belongs to one event loop. One cluster, whose deployments may tick at different times."""

    def __init__(
        self,
        config: PlannerConfig,
        cluster: Cluster,
        members: Mapping[str, Member],
        listeners: Sequence[Listener],
        clock: Callable[[], float],
    ) -> None:
        """clock: seconds since 1970 that never go back"""
        self._config = config
        self._cluster = cluster
        self.members = members
        self._listeners = listeners
        self._clock = clock
        self._deciding = asyncio.Lock()
        self._wished: dict[str, dict[Role, int] | None] = {}
        """What the last tick wished, by deployment."""
        self._is_held = False
        """Could some deployment not be decided in the last tick?"""

    async def run(self) -> None:
        """Until it is cancelled.  Looks at everything once, then waits for the first tick."""
        for name, member in self.members.items():
            started_s = self._cluster.deployments[name].last_s
            self._tell_settings(name, member.config, started_s)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._step_connectors())
            group.create_task(self._tick_for_ever())

    async def tick(self) -> None:
        """The deployments that are due now."""
        now_s = self._clock()
        by_s = asyncio.get_running_loop().time() + DEADLINE_S
        due = [name for name in self.members if self._due_at(name) <= now_s + EARLY_S]
        try:
            async with asyncio.timeout_at(by_s):
                told = await asyncio.gather(*(self._told(name, now_s) for name in due))
        except TimeoutError:
            self._is_late(due)
            told = [TickInput(now_s=now_s, replicas={}) for _ in due]
        by_name = dict(zip(due, told, strict=True))
        async with self._deciding:  # a forecast may take seconds, in which the API answers
            effects = await asyncio.to_thread(self._decided, by_name)
        applied = await asyncio.gather(
            *(self._apply(name, effects[name], by_s) for name in effects)
        )
        for name, decision in zip(effects, applied, strict=True):
            self._log_wish(name, effects[name])
            for listener in self._listeners:
                listener.ticked(name, by_name[name], effects[name], decision)
        self._is_held = len(effects) < len(by_name)

    async def end_polls(self) -> None:
        """Answer everybody who waits for a decision: the process ends."""
        for member in self.members.values():
            if (virtual := virtual_of(member.connector)) is not None:
                await virtual.end_polls()

    def next_tick_s(self, name: str) -> float:
        """Return when the next tick of a deployment is due, in seconds since 1970."""
        return self._due_at(name)

    def configs(self) -> dict[str, DeploymentConfig]:
        """What counts now."""
        return {name: member.config for name, member in self.members.items()}

    def is_paused(self, name: str) -> bool:
        return name in self._cluster.paused

    async def change(
        self, name: str, fields: Mapping[str, object], *, paused: bool | None = None
    ) -> DeploymentConfig:
        """Other bounds and switches, from the next tick on; all of them or none.

        Raises KeyError for an unknown deployment, ConfigError for what makes no sense.
        """
        member = self.members[name]
        changed: DeploymentConfig = replace(member.config, **fields)
        configs = {**self.configs(), name: changed}
        completed = (self._cluster.deployments[of].completed(own) for of, own in configs.items())
        for fault in faults(replace(self._config, deployments=tuple(completed))):
            raise ConfigError(fault)
        async with self._deciding:
            try:
                self._cluster.deployments[name].reconfigure(changed)
            except ValueError as error:
                raise ConfigError(str(error)) from None
        if paused is not None:
            (self._cluster.paused.add if paused else self._cluster.paused.discard)(name)
        member.config = changed
        await member.switch(changed.advisory or name in self._cluster.paused)
        self._tell_settings(name, changed, self._clock())
        return changed

    def _due_at(self, name: str) -> float:
        return self._cluster.deployments[name].next_tick.at_s

    async def _told(self, name: str, now_s: float) -> TickInput:
        member = self.members[name]
        try:
            return await member.told(self._cluster.deployments[name].needs(now_s), now_s)
        except Exception as error:  # one deployment must not end the others
            member.failed("sources", error)
            return TickInput(now_s=now_s, replicas={})

    def _decided(self, told: Mapping[str, TickInput]) -> dict[str, Effects]:
        """Of all together; where that fails, of each alone, without those that fail again."""
        try:
            return self._cluster.tick(told)
        except Exception:
            log.exception("a tick failed, each deployment is decided alone")
        effects: dict[str, Effects] = {}
        for name, tick in told.items():
            try:
                effects |= self._cluster.tick({name: tick})
            except Exception as error:
                self.members[name].failed("decision", error)
        return effects

    async def _apply(self, name: str, effects: Effects, by_s: float) -> Decision | None:
        """by_s: of the event loop's clock, when it has to begin."""
        if not effects.scale_to:
            return None
        try:
            return await self.members[name].apply(effects.scale_to, by_s)
        except TooLate:
            self._is_late([name])
        except Exception as error:
            self.members[name].failed("connector", error)
        return None

    def _is_late(self, names: Sequence[str]) -> None:
        for name in names:
            self.members[name].faults["tick"] = f"took over {DEADLINE_S:g} s; nothing was scaled"
        log.error("a tick took too long, and nothing is scaled", extra={"fields": {"of": names}})

    async def _go_on(self, member: Member) -> None:
        try:
            await member.go_on()
        except Exception as error:
            member.failed("connector", error)

    def _log_wish(self, name: str, effects: Effects) -> None:
        """Log a wish once, however many ticks it takes until the platform has followed."""
        if effects.wished == self._wished.get(name):
            return
        self._wished[name] = effects.wished
        if effects.wished is None:
            return
        fields = {
            "deployment": name,
            "replicas": {role.value: count for role, count in effects.wished.items()},
            "reasons": [each.value for each in effects.diagnostics.reasons],
            "is_scaled": effects.scale_to is not None and not self.is_paused(name),
        }
        log.info("replicas decided", extra={"fields": fields})

    def _tell_settings(self, name: str, config: DeploymentConfig, now_s: float) -> None:
        own = {each: getattr(config, each) for each in Settings.__struct_fields__}
        for listener in self._listeners:
            listener.changed(name, Settings(**own), now_s)

    async def _look_before_ticks(self) -> None:
        """Ask everything once, and again what was wrong: it may have started at the same time."""
        names = list(self.members)
        while names:
            await asyncio.gather(*map(self._look, names))
            names = [name for name in names if self.members[name].faults]
            left_s = min(map(self._due_at, self.members)) - self._clock()
            if left_s < RETRY_S + LOOK_S:  # no tick has to wait for it
                return
            await asyncio.sleep(RETRY_S)

    async def _look(self, name: str) -> None:
        try:
            await self.members[name].look()
        except Exception as error:  # one deployment must not end the others
            self.members[name].failed("sources", error)

    async def _tick_for_ever(self) -> None:
        await self._look_before_ticks()
        while True:
            at_s = min(map(self._due_at, self.members))
            await asyncio.sleep(max(0.0, at_s - self._clock()))
            await self.tick()
            if self._is_held:
                await asyncio.sleep(RETRY_S)

    async def _step_connectors(self) -> None:
        while True:
            await asyncio.sleep(STEP_S)
            await asyncio.gather(*map(self._go_on, self.members.values()))
