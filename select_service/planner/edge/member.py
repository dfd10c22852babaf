"""EDGE: one deployment: what it is told in a tick, and what is done of what it decides."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from time import monotonic

from msgspec.structs import replace

from select_service.planner.config import DeploymentConfig, LimitsGiven
from select_service.planner.connectors.advisory import Switched
from select_service.planner.connectors.base import (
    ConnectorError,
    Decision,
)
from select_service.planner.core.inputs import (
    ForwardPass,
    Limits,
    Replicas,
    Role,
    TickInput,
    Traffic,
    gpus_said,
)
from select_service.planner.core.schedule import NextTick
from select_service.planner.core.settings import GPU_FIELDS, min_endpoint_of, roles_of
from select_service.planner.edge.fpm_source import FpmPasses
from select_service.planner.edge.observation import Observed
from select_service.planner.edge.prometheus_source import PrometheusTraffic
from select_service.planner.edge.proposers import ExternalProposers
from select_service.planner.edge.selector_source import SelectorSource
from select_service.planner.outbound import Unreachable

log = logging.getLogger(__name__)

LOOK_S = 10.0
"""That sources get to answer before the first tick."""
APPLY_S = 30.0
"""That a platform gets to take a decision: one that hangs must not stop the others for ever."""
REGISTERING_S = 60.0
"""That workers get to register again with selectors that have begun anew."""


class TooLate(Exception):
    """Scaling could not begin in time."""


class Sources:
    """Where a deployment is observed. Those that are not configured are None.

    clock: seconds that never go back
    """

    def __init__(
        self,
        selectors: SelectorSource | None,
        prometheus: PrometheusTraffic | None,
        fpm: FpmPasses | None,
        proposers: ExternalProposers,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.selectors = selectors
        self.prometheus = prometheus
        self.fpm = fpm
        self.proposers = proposers
        self.may_sleep = False
        """Whether a deployment without replicas is as it should be."""
        self.seen: Observed | None = None
        """The last reading of the selectors; None: they did not answer."""
        self._hearing: asyncio.Task[None] | None = None
        self._clock = clock
        self._counted: Mapping[Role, int] = {}
        """Workers when they were last known."""
        self._registering_until: float | None = None
        """None: selectors have not answered since; passed: all that were there have come back."""
        self._absent_since: float | None = None
        """When selectors began to answer that none of them knows the model."""

    async def workers(self) -> Mapping[Role, int] | None:
        """Workers that take requests, as selectors see them.

        None while they know no partition or have just begun: workers register again after that,
        one after the other, so fewer than before are not all of them yet. A model that selectors
        still do not know then has no workers, where that may be.
        """
        if self.may_sleep and self.selectors is not None and self.selectors.is_absent:
            return self._absent()
        self._absent_since = None
        if self.seen is None or not self.seen.is_whole:
            self._registering_until = None
            return None
        now, found = self._clock(), self.seen.workers
        if self._registering_until is None:
            self._registering_until = now + REGISTERING_S
        fewer = any(found.get(role, 0) < count for role, count in self._counted.items())
        if fewer and now < self._registering_until:
            return None
        self._counted, self._registering_until = found, now
        return found

    def _absent(self) -> Mapping[Role, int] | None:
        now = self._clock()
        if self._absent_since is None:
            self._absent_since = now
        if now - self._absent_since < REGISTERING_S:
            return None
        self._counted, self._registering_until = dict.fromkeys(Role, 0), now
        return self._counted

    def begin(self) -> None:
        """Take what engines publish from now on."""
        if self.fpm is not None:
            self._hearing = asyncio.create_task(self.fpm.run(), name="forward passes")

    async def close(self) -> None:
        if self._hearing is not None:
            self._hearing.cancel()
            await asyncio.gather(self._hearing, return_exceptions=True)
        if self.prometheus is not None:
            await self.prometheus.close()
        if self.fpm is not None:
            self.fpm.close()


class Member:
    """Belongs to one event loop."""

    def __init__(self, config: DeploymentConfig, sources: Sources, connector: Switched) -> None:
        self.config = config
        self.sources = sources
        self.connector = connector
        self.faults: dict[str, str] = {}
        """Source or role -> what kept it from being known in the last tick."""
        self._noted = self.faults
        """Those of the tick that is under way."""
        self._contradicted: dict[Role, str] = {}
        self._looked: dict[str, object] = {}
        """What the log had of the last look."""
        self._busy = asyncio.Lock()

    async def look(self) -> None:
        """Ask all sources and the platform once, so that what is wrong is known before any tick."""
        self._noted, before = {}, self._looked
        interval_s = self.config.load_adjustment_interval_seconds
        due = NextTick(at_s=0.0, run_load=True, run_throughput=False, traffic_s=interval_s)
        counts: dict[Role, Replicas] = {}
        try:
            async with asyncio.timeout(LOOK_S):
                await self._observe(due)
                async with self._busy:
                    counts = await self._read()
        except TimeoutError:
            self._fault("start", f"not everything has answered within {LOOK_S:g} s")
        self.faults = self._noted
        self._looked = {
            "deployment": self.config.name,
            "ready": {role.value: found.ready for role, found in counts.items()} or "unknown",
            "faults": len(self.faults),
        }
        if self._looked != before:
            log.info("deployment observed", extra={"fields": self._looked})

    async def told(self, due: NextTick, now_s: float) -> TickInput:
        """What is known now. What fails is unknown, and stands in `faults`.

        Faults of the tick before stand there until all was asked, which may take ten seconds.
        """
        self._noted = {}
        roles = roles_of(self.config)
        self.sources.may_sleep = not any(min_endpoint_of(self.config, role) for role in roles)
        traffic = await self._observe(due)
        passes = self._passes()
        async with self._busy:
            counts = await self._read()
        if traffic is not None and self._sleeps(counts):
            traffic = replace(traffic, requests=0.0)
        tick = TickInput(now_s=now_s, replicas=counts, traffic=traffic, passes=passes)
        proposals = await self.sources.proposers.ask(self.config.name, tick)
        self.faults = self._noted
        return replace(tick, proposals=proposals) if proposals else tick

    def _sleeps(self, counts: Mapping[Role, Replicas]) -> bool:
        """Return whether no selector has had a request for a model that has no replicas.

        Selectors that know nothing of a model may have just begun; nothing can go down for it here.
        """
        selectors = self.sources.selectors
        if self.sources.prometheus is not None or not self.sources.may_sleep:
            return False
        is_empty = bool(counts) and not any(
            each.ready or each.expected or each.pending for each in counts.values()
        )
        return is_empty and selectors is not None and selectors.is_absent

    async def apply(self, scale_to: Mapping[Role, int], by_s: float) -> Decision | None:
        """None: the platform could not be told; the next tick decides anew.

        by_s: of the event loop's clock, when it has to begin. Raises TooLate, and scales nothing.
        """
        async with self._begun(by_s):
            try:
                async with asyncio.timeout(APPLY_S):
                    return await self.connector.scale(scale_to)
            except TimeoutError:
                self._fault("connector", f"no answer within {APPLY_S:g} s")
            except ConnectorError as error:
                self._fault("connector", str(error))
        return None

    @asynccontextmanager
    async def _begun(self, by_s: float) -> AsyncIterator[None]:
        """Nothing else of the connector runs."""
        try:
            async with asyncio.timeout_at(by_s):
                await self._busy.acquire()
        except TimeoutError:
            raise TooLate from None
        try:
            if asyncio.get_running_loop().time() >= by_s:
                raise TooLate
            yield
        finally:
            self._busy.release()

    async def switch(self, advisory: bool) -> None:
        """Not in the middle of a step of the connector."""
        async with self._busy:
            await self.connector.switch(advisory)

    async def go_on(self) -> None:
        """A step of what is under way: drains, and what waits for them."""
        if self._busy.locked():
            return
        async with self._busy:
            try:
                await self.connector.wait(0.0)
            except ConnectorError as error:
                self._fault("connector", str(error))

    def failed(self, source: str, error: Exception) -> None:
        """An error that nobody expected: it is seen in `faults`, and the traceback in the log."""
        self.faults[source] = f"{type(error).__name__}: {error}"
        fields = {"deployment": self.config.name, "source": source}
        log.error("a deployment is held", exc_info=error, extra={"fields": fields})

    async def close(self) -> None:
        await self.connector.close()
        await self.sources.close()

    async def _observe(self, due: NextTick) -> Traffic | None:
        config, sources = self.config, self.sources
        if sources.selectors is not None:
            window = due.traffic_s or config.load_adjustment_interval_seconds
            sources.seen = await sources.selectors.observe(
                window, ttft_s=config.ttft_ms / 1000.0, itl_s=config.itl_ms / 1000.0
            )
            for url, fault in sources.selectors.faults.items():
                self._noted[url] = fault
            if sources.selectors.unknown is not None:
                self._noted["model"] = sources.selectors.unknown
        if due.traffic_s is None:
            return None
        if sources.prometheus is not None:
            return await self._of_prometheus(sources.prometheus, due.traffic_s)
        return None if sources.seen is None else sources.seen.traffic

    async def _of_prometheus(
        self, prometheus: PrometheusTraffic, window_s: float
    ) -> Traffic | None:
        """With what the selectors know and Prometheus does not, as distributions and samples."""
        try:
            traffic = await prometheus.observe(window_s)
        except Unreachable as error:
            self._fault("prometheus", str(error))
            return None
        if self.sources.seen is None:
            return traffic
        known = {
            field: value
            for field in traffic.__struct_fields__
            if (value := getattr(traffic, field)) is not None and field != "duration_s"
        }
        own = self.sources.seen.traffic
        measured = ("requests", "isl", "osl", "kv_hit_rate", "accept_length")
        latencies = {field: known[field] for field in ("ttft_s", "itl_s") if field in known}
        return replace(own, **{field: known.get(field) for field in measured}, **latencies)

    def _passes(self) -> Mapping[Role, tuple[ForwardPass, ...]] | None:
        """Iterations that engines published; of roles without, what selectors have booked."""
        sources = self.sources
        published = {} if sources.fpm is None else sources.fpm.read()
        seen = {} if sources.seen is None else sources.seen.passes
        result = {}
        for role in roles_of(self.config):
            if published.get(role):
                result[role] = published[role]
            elif role in seen:
                result[role] = seen[role]
        return result or None

    async def _read(self) -> dict[Role, Replicas]:
        try:
            found = await self.connector.read()
        except ConnectorError as error:
            self._fault("connector", str(error))
            return {}
        for role, fault in self.connector.faults().items():
            if role in roles_of(self.config):
                self._noted[f"connector {role}"] = fault
        self._compare_gpus(gpus_said(found))
        return {
            role: replace(each, limits=self._limits(role, each))
            for role, each in found.items()
            if role in roles_of(self.config)
        }

    def _compare_gpus(self, said: Mapping[Role, int]) -> None:
        """A setting that the platform contradicts counts, and is said; in the log once."""
        before, self._contradicted = self._contradicted, {}
        for role in roles_of(self.config):
            field = GPU_FIELDS[role]
            given, found = getattr(self.config, field), said.get(role)
            if given is None or found in (None, given):
                continue
            text = f"{field} is {given} and counts; the pod template asks for {found}"
            self._noted[f"gpus {role}"] = self._contradicted[role] = text
            if before.get(role) != text:
                fields = {"deployment": self.config.name, "of": text}
                log.warning("replicas have other GPUs than was set", extra={"fields": fields})

    def _limits(self, role: Role, found: Replicas) -> Limits:
        """What the file says, else what was observed, else what the platform says."""
        is_prefill = role is Role.PREFILL
        given: LimitsGiven = self.config.prefill_limits if is_prefill else self.config.decode_limits
        seen = None if self.sources.seen is None else self.sources.seen.limits.get(role)
        fields = {}
        for field in LimitsGiven.__struct_fields__:
            of_all = (getattr(each, field, None) for each in (given, seen, found.limits))
            fields[field] = next((value for value in of_all if value is not None), None)
        num_gpu = None if found.limits is None else found.limits.num_gpu
        return Limits(num_gpu=num_gpu, **fields)

    def _fault(self, source: str, text: str) -> None:
        self._noted[source] = text
        fields = {"deployment": self.config.name, "source": source, "error": text}
        log.warning("a source or a platform failed", extra={"fields": fields})
