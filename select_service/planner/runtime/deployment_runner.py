"""Deployment at run time: gathers the input of a tick and carries out its decision."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from time import monotonic

from msgspec.structs import replace

from select_service.net.http_client.http_error import HttpError
from select_service.planner.config import ConfiguredLimits, DeploymentConfig
from select_service.planner.connectors.connector import (
    ConnectorDecision,
    ConnectorError,
    ConnectorStatus,
    PlatformConnector,
    same_outcome,
)
from select_service.planner.core.schedule import NextTick
from select_service.planner.core.settings import (
    GPU_FIELDS,
    is_throughput_enabled,
    minimum_replicas,
    scaled_roles,
)
from select_service.planner.core.tick_input import (
    EngineLimits,
    ForwardPass,
    Role,
    RoleHealth,
    RoleReplicas,
    TickInput,
    TrafficWindow,
    reported_gpus,
)
from select_service.planner.plugins.plugin_host import PluginHost
from select_service.planner.runtime.forward_pass_source import ForwardPassReceiver
from select_service.planner.runtime.prometheus_source import PrometheusTraffic
from select_service.planner.runtime.selector_observation import CombinedObservation
from select_service.planner.runtime.selector_source import SelectorSource

log = logging.getLogger("select_service.planner")

LOOK_S = 10.0
"""Time for sources to answer before the first tick, seconds."""
APPLY_S = 30.0
"""Time for a platform to take a decision, seconds: a hanging platform must not stop the others."""
REGISTRATION_S = 60.0
"""Time for workers to register again with restarted selectors, seconds."""


class ScalingTooLate(Exception):
    """Error of scaling that could not begin in time."""


class DeploymentSources:
    """Sources of a deployment; None where not configured.

    clock: monotonic seconds
    """

    def __init__(
        self,
        selectors: SelectorSource | None,
        prometheus: PrometheusTraffic | None,
        fpm: ForwardPassReceiver | None,
        plugins: PluginHost,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.selectors = selectors
        self.prometheus = prometheus
        self.fpm = fpm
        self.plugins = plugins
        self.may_sleep = False
        """Whether the deployment may have no replicas."""
        self.last_observation: CombinedObservation | None = None
        """Last reading of the selectors; None if they did not answer."""
        self._hearing: asyncio.Task[None] | None = None
        self._clock = clock
        self._last_workers: Mapping[Role, int] = {}
        """Workers at the last complete reading."""
        self._registering_until: float | None = None
        """End of the registration period; None until selectors answer again."""
        self._absent_since: float | None = None
        """Time since which selectors answer that none of them has the model."""

    async def serving_workers(self) -> Mapping[Role, int] | None:
        """Return the workers that take requests, by the selectors; None if unknown.

        Unknown while selectors have no partition or have just restarted: workers register one after
        the other, so a lower count than before is incomplete. A model that selectors still do not
        have later has no workers, if the minimums allow that.
        """
        if self.may_sleep and self.selectors is not None and self.selectors.is_absent:
            return self._workers_when_absent()
        self._absent_since = None
        # Selectors have restarted or are unreachable: the registration period begins with the next
        # complete answer.
        if self.last_observation is None or not self.last_observation.is_whole:
            self._registering_until = None
            return None
        now, found = self._clock(), self.last_observation.workers
        if self._registering_until is None:
            self._registering_until = now + REGISTRATION_S
        fewer = any(found.get(role, 0) < count for role, count in self._last_workers.items())
        # A lower count during the registration period would look like lost replicas, and start new
        # replicas.
        if fewer and now < self._registering_until:
            return None
        self._last_workers, self._registering_until = found, now
        return found

    async def worker_health(self) -> Mapping[Role, RoleHealth] | None:
        """Return the health of the workers; None while not all workers are known."""
        if self.last_observation is None or await self.serving_workers() is None:
            return None
        return self.last_observation.health

    @property
    def degradation_level(self) -> int:
        """Highest degradation level of the selectors; 0 if unknown."""
        return 0 if self.last_observation is None else self.last_observation.degradation_level

    def _workers_when_absent(self) -> Mapping[Role, int] | None:
        """Return zero workers once selectors have not had the model for a while, else None."""
        now = self._clock()
        if self._absent_since is None:
            self._absent_since = now
        if now - self._absent_since < REGISTRATION_S:
            return None
        self._last_workers, self._registering_until = dict.fromkeys(Role, 0), now
        return self._last_workers

    def start_receiving(self) -> None:
        """Start to receive forward passes."""
        if self.fpm is not None:
            self._hearing = asyncio.create_task(self.fpm.run(), name="forward passes")

    async def close(self) -> None:
        """Stop and close the sources."""
        if self._hearing is not None:
            self._hearing.cancel()
            await asyncio.gather(self._hearing, return_exceptions=True)
        if self.prometheus is not None:
            await self.prometheus.close()
        if self.fpm is not None:
            self.fpm.close()


class DeploymentRunner:
    """Runner of a deployment. Belongs to one event loop."""

    def __init__(
        self, config: DeploymentConfig, sources: DeploymentSources, connector: PlatformConnector
    ) -> None:
        self.config = config
        self.sources = sources
        self.connector = connector
        self._is_advisory = config.advisory
        """Whether the connector is only read, whatever its kind."""
        self.faults: dict[str, str] = {}
        """Map from source or role to its error in the last tick."""
        self._current_faults = self.faults
        """Errors of the tick under way."""
        self._contradicted: dict[Role, str] = {}
        self._last_logged: dict[str, object] = {}
        """Fields of the last look in the log."""
        self._busy = asyncio.Lock()

    async def observe_once(self) -> None:
        """Observe all sources and the platform once, so that errors are known before any tick."""
        self._current_faults, before = {}, self._last_logged
        interval_s = self.config.load_adjustment_interval_seconds
        due = NextTick(at_s=0.0, run_load=True, run_throughput=False, traffic_s=interval_s)
        counts: dict[Role, RoleReplicas] = {}
        try:
            async with asyncio.timeout(LOOK_S):
                await self._read_traffic(due)
                async with self._busy:
                    counts = await self._read_replicas()
        except TimeoutError:
            self._record_fault("start", f"sources or platform did not answer within {LOOK_S:g} s")
        self.faults = self._current_faults
        self._last_logged = {
            "deployment": self.config.name,
            "ready": {role.value: found.ready for role, found in counts.items()} or "unknown",
            "faults": len(self.faults),
        }
        if self._last_logged != before:
            log.info("deployment observed", extra={"fields": self._last_logged})

    async def gather_inputs(self, due: NextTick, now_s: float) -> TickInput:
        """Return the current input. Failed sources are unknown, with their errors in `faults`.

        The errors of the last tick remain until all sources have answered, which may take ten
        seconds.
        """
        self._current_faults = {}
        roles = scaled_roles(self.config)
        self.sources.may_sleep = not any(minimum_replicas(self.config, role) for role in roles)
        traffic = await self._read_traffic(due)
        passes = self._read_passes()
        async with self._busy:
            counts = await self._read_replicas()
        # Without replicas no selector has a partition, so no source counts requests.
        if traffic is not None and self._is_asleep(counts):
            traffic = replace(traffic, requests=0.0)
        health = await self.sources.worker_health()
        self.faults = self._current_faults
        return TickInput(
            now_s=now_s,
            replicas=counts,
            traffic=traffic,
            passes=passes,
            health=health,
            degradation_level=self.sources.degradation_level,
        )

    def _is_asleep(self, counts: Mapping[Role, RoleReplicas]) -> bool:
        """Return whether no selector has had a request for a model without replicas.

        Selectors without the model may have just restarted, but without replicas nothing can scale
        down.
        """
        selectors = self.sources.selectors
        if self.sources.prometheus is not None or not self.sources.may_sleep:
            return False
        is_empty = bool(counts) and not any(
            each.ready or each.expected or each.pending for each in counts.values()
        )
        return is_empty and selectors is not None and selectors.is_absent

    async def scale_to(
        self, scale_to: Mapping[Role, int], by_s: float, lost: tuple[int, ...] = ()
    ) -> ConnectorDecision | None:
        """Scale; None if the platform did not take the decision, and the next tick decides anew.

        lost: workers to be replaced in their places
        by_s: latest start, by the event loop's clock. Raises ScalingTooLate, and scales nothing.
        """
        async with self._hold_connector(by_s):
            if self._is_advisory:
                return same_outcome(scale_to, ConnectorStatus.ADVISORY)
            try:
                async with asyncio.timeout(APPLY_S):
                    if not lost:
                        return await self.connector.scale(scale_to)
                    return await self.connector.scale(scale_to, lost)
            except TimeoutError:
                self._record_fault("connector", f"no answer within {APPLY_S:g} s")
            except ConnectorError as error:
                self._record_fault("connector", str(error))
        return None

    @asynccontextmanager
    async def _hold_connector(self, by_s: float) -> AsyncIterator[None]:
        """Hold the connector exclusively from before the deadline. Raises ScalingTooLate."""
        try:
            async with asyncio.timeout_at(by_s):
                await self._busy.acquire()
        except TimeoutError:
            raise ScalingTooLate from None
        try:
            # The lock may have been acquired right at the deadline.
            if asyncio.get_running_loop().time() >= by_s:
                raise ScalingTooLate
            yield
        finally:
            self._busy.release()

    async def switch_advisory(self, advisory: bool) -> None:
        """Switch advisory mode; on entry, changes under way are undone, as draining workers."""
        async with self._busy:
            is_new, self._is_advisory = advisory and not self._is_advisory, advisory
            if is_new:
                await self.connector.pause()

    async def step_connector(self) -> None:
        """Run a step of drains and postponed raises."""
        # A step may be skipped: the next one comes in two seconds.
        if self._is_advisory or self._busy.locked():
            return
        async with self._busy:
            try:
                await self.connector.wait(0.0)
            except ConnectorError as error:
                self._record_fault("connector", str(error))

    def record_failure(self, source: str, error: Exception) -> None:
        """Record an unexpected error in `faults`, and its traceback in the log."""
        self.faults[source] = f"{type(error).__name__}: {error}"
        fields = {"deployment": self.config.name, "source": source}
        log.error(
            "deployment held after an unexpected error", exc_info=error, extra={"fields": fields}
        )

    async def close(self) -> None:
        """Close connector and sources."""
        await self.connector.close()
        await self.sources.close()

    async def _read_traffic(self, due: NextTick) -> TrafficWindow | None:
        """Read the sources and return the traffic, or None if unknown."""
        config, sources = self.config, self.sources
        if sources.selectors is not None:
            window = due.traffic_s or config.load_adjustment_interval_seconds
            sources.last_observation = await sources.selectors.read_observations(
                window, ttft_s=config.ttft_ms / 1000.0, itl_s=config.itl_ms / 1000.0
            )
            for url, fault in sources.selectors.faults.items():
                self._current_faults[url] = fault
            if sources.selectors.unknown_model is not None:
                self._current_faults["model"] = sources.selectors.unknown_model
            self._compare_mode(sources.last_observation)
        if due.traffic_s is None:
            return None
        if sources.prometheus is not None:
            is_whole = due.run_throughput or not is_throughput_enabled(config)
            return await self._read_prometheus(sources.prometheus, due.traffic_s, is_whole)
        return None if sources.last_observation is None else sources.last_observation.traffic

    def _compare_mode(self, observation: CombinedObservation | None) -> None:
        """Report workers that the mode does not count."""
        # The modes `prefill` and `decode` leave the other role to another planner on purpose.
        prefills = 0 if observation is None else observation.workers.get(Role.PREFILL, 0)
        if self.config.mode == "agg" and prefills:
            text = f"{prefills} workers have the role prefill, which mode `agg` does not count"
            self._current_faults["mode"] = f"{text}: set `mode: disagg`"

    async def _read_prometheus(
        self, prometheus: PrometheusTraffic, window_s: float, is_whole: bool
    ) -> TrafficWindow | None:
        """Return Prometheus' traffic, completed by the selectors' distributions and samples."""
        try:
            traffic = await prometheus.read_traffic(window_s, is_whole=is_whole)
        except HttpError as error:
            self._record_fault("prometheus", str(error))
            return None
        if prometheus.nothing_found is not None:
            # Shown until the next whole window, and logged once for each.
            self._current_faults["prometheus"] = prometheus.nothing_found
            if is_whole:
                self._record_fault("prometheus", prometheus.nothing_found)
        if self.sources.last_observation is None:
            return traffic
        # Measured values replace the selectors' even if unknown: the selectors may have seen only a
        # part of the traffic.
        fields = ["requests", "isl", "osl", "kv_hit_rate", "accept_length"]
        fields += [each for each in ("ttft_s", "itl_s") if getattr(traffic, each) is not None]
        measured = {field: getattr(traffic, field) for field in fields}
        return replace(self.sources.last_observation.traffic, **measured)

    def _read_passes(self) -> Mapping[Role, tuple[ForwardPass, ...]] | None:
        """Return published iterations; for roles without any, the selectors' reservations."""
        sources = self.sources
        published = {} if sources.fpm is None else sources.fpm.take_passes()
        seen = {} if sources.last_observation is None else sources.last_observation.passes
        # Published passes are real iterations, and have precedence over reservations.
        passes = {**seen, **{role: of_role for role, of_role in published.items() if of_role}}
        roles = scaled_roles(self.config)
        return {role: passes[role] for role in roles if role in passes} or None

    async def _read_replicas(self) -> dict[Role, RoleReplicas]:
        """Read the replicas, with limits. Empty after an error."""
        try:
            found = await self.connector.read()
        except ConnectorError as error:
            self._record_fault("connector", str(error))
            return {}
        for role, fault in self.connector.faults().items():
            if role in scaled_roles(self.config):
                self._current_faults[f"connector {role}"] = fault
        self._compare_gpus(reported_gpus(found))
        return {
            role: replace(each, limits=self._merge_limits(role, each))
            for role, each in found.items()
            if role in scaled_roles(self.config)
        }

    def _compare_gpus(self, reported: Mapping[Role, int]) -> None:
        """Report a setting that the platform contradicts; the setting counts. Logged once."""
        before, self._contradicted = self._contradicted, {}
        for role in scaled_roles(self.config):
            field = GPU_FIELDS[role]
            given, found = getattr(self.config, field), reported.get(role)
            if given is None or found in (None, given):
                continue
            text = f"{field} is {given} and takes precedence; the pod template requests {found}"
            self._current_faults[f"gpus {role}"] = self._contradicted[role] = text
            if before.get(role) != text:
                fields = {"deployment": self.config.name, "of": text}
                log.warning(
                    "configured GPUs differ from the pod template", extra={"fields": fields}
                )

    def _merge_limits(self, role: Role, found: RoleReplicas) -> EngineLimits:
        """Return limits from the file, else observed limits, else the platform's."""
        given: ConfiguredLimits = getattr(self.config, f"{role}_limits")
        observation = self.sources.last_observation
        seen = None if observation is None else observation.limits.get(role)
        fields = {}
        for field in ConfiguredLimits.__struct_fields__:
            of_all = (getattr(each, field, None) for each in (given, seen, found.limits))
            fields[field] = next((value for value in of_all if value is not None), None)
        num_gpu = None if found.limits is None else found.limits.num_gpu
        return EngineLimits(num_gpu=num_gpu, **fields)

    def _record_fault(self, source: str, text: str) -> None:
        """Record and log an error of a source."""
        self._current_faults[source] = text
        fields = {"deployment": self.config.name, "source": source, "error": text}
        log.warning("planner input or connector failed", extra={"fields": fields})
